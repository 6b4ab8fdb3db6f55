import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service.archive import Archive
from headrace.service.export_answers import ExportReports
from headrace.service.jobs import JobRecord

Served = tuple[FakeDaemon, httpx2.Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("exports"))
    with calling(daemon) as client:
        yield daemon, client


def model_folder(path: Path) -> dict[str, bytes]:
    """Files of awkward sizes and names, and a link that leads out."""
    files = {
        "config.json": b"{}",
        "model.safetensors": bytes(range(256)) * 9000,
        "empty": b"",
        "block": b"x" * 512,
        "deeper/" + "long-name-" * 15: "wörter".encode(),
    }
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    (path / "link").symlink_to("/etc/hostname")
    return files


def unpack(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in members if file}


def finished(daemon: FakeDaemon, folder: Path) -> JobRecord:
    job = daemon.journal.add_job(some_job(status="succeeded", fine_tuned_model="ft:x"))
    daemon.journal.add_model(name="ft:x", path=str(folder), job_id=job.id)
    return job


def test_an_export_unpacks_to_the_models_files(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    files = model_folder(tmp_path)
    job = finished(daemon, tmp_path)
    answer = client.get(f"/v1/fine_tuning/jobs/{job.id}/export")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert f'filename="{job.id}.tar"' in answer.headers["content-disposition"]
    assert unpack(answer.content) == {f"{job.id}/{name}": data for name, data in files.items()}


def test_a_checkpoint_comes_the_same_way(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    folder = tmp_path / "step-20"
    files = model_folder(folder)
    job, other = (daemon.journal.add_job(some_job(status="cancelled")) for _ in range(2))
    held = daemon.journal.add_checkpoint(job.id, step=20, name="c", path=str(folder), metrics={})
    path = f"/v1/fine_tuning/jobs/{job.id}/export"
    answer = client.get(path, params={"checkpoint": held.id})
    assert set(unpack(answer.content)) == {f"{job.id}-step-20/{name}" for name in files}
    elsewhere = f"/v1/fine_tuning/jobs/{other.id}/export"
    assert client.get(elsewhere, params={"checkpoint": held.id}).status_code == 404
    for asked, has in ((path, f"It has, newest first: {held.id} (step 20)."),
                       (elsewhere, "It has none.")):  # fmt: skip
        missing = client.get(asked, params={"checkpoint": "nope"})
        said = missing.json()["error"]
        assert missing.status_code == 404 and said["param"] == "checkpoint"
        assert "has no checkpoint 'nope'" in said["message"] and said["hint"] == has


def test_what_is_not_there_is_not_exported(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    gone = finished(daemon, tmp_path / "gone")
    unfinished = daemon.journal.add_job(some_job(status="cancelled"))
    for job_id in (gone.id, unfinished.id, "ftjob-none"):
        assert client.get(f"/v1/fine_tuning/jobs/{job_id}/export").status_code == 404


def report(format: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """As a run tells it."""
    check = {
        "matches": True, "num_prompts": 3, "num_positions": 96, "max_abs_diff": 0.0121,
        "rounding_diff": 0.012, "unexplained_diff": 0.0001, "tolerance": 0.0182,
        "largest_logit": 20.0, "argmax_agreement": 0.99, "seconds": 1.5,
    }  # fmt: skip
    name = f"model.{'gguf' if format == 'gguf' else 'safetensors'}"
    files = [{"name": name, "bytes": 5_000_000, "sha256": "ab" * 32}]
    told = {"format": format, "dtype": "bfloat16", "step": 20, "check": check, "files": files}
    return {**told, "path": str(folder), **changes}


def with_reports(daemon: FakeDaemon, folder: Path, *reports: dict[str, Any]) -> JobRecord:
    job = finished(daemon, folder)
    return daemon.journal.set_fields(job.id, engine={**job.engine, "exports": list(reports)})


def test_what_was_read_back_is_told_by_the_api_and_on_the_page(
    served: Served, tmp_path: Path
) -> None:
    daemon, client = served
    told = [report("hf", tmp_path), report("gguf", tmp_path, dtype="q8_0", check=None)]
    job = with_reports(daemon, tmp_path, *told)
    answer = client.get(f"/v1/fine_tuning/jobs/{job.id}/export/reports").json()
    assert answer == {"object": "list", "data": told}
    ExportReports.model_validate(answer)
    assert client.get(f"/v1/fine_tuning/jobs/{job.id}").json()["engine"]["exports"] == told
    page = client.get(f"/jobs/{job.id}").text
    for words in ("up to 0.012<", "up to 0.0001, 0.018 allowed", "99 % of 96 positions"):
        assert page.count(words) == 1  # no number is told twice
    assert "q8_0, 5.00 MB" in page and f"/v1/fine_tuning/jobs/{job.id}/export/gguf" in page


def test_a_list_of_jobs_leaves_the_reports_out(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    with_reports(daemon, tmp_path, report("hf", tmp_path))
    listed = client.get("/v1/fine_tuning/jobs").json()["data"]
    assert all("exports" not in job["engine"] for job in listed)


def test_the_gguf_file_comes_as_it_is_and_in_ranges(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    tmp_path.joinpath("model.gguf").write_bytes(b"GGUF and so on")
    job = with_reports(daemon, tmp_path, report("gguf", tmp_path))
    path = f"/v1/fine_tuning/jobs/{job.id}/export/gguf"
    answer = client.get(path)
    assert answer.content == b"GGUF and so on"
    assert f'filename="{job.id}-model.gguf"' in answer.headers["content-disposition"]
    assert client.get(path, headers={"range": "bytes=0-3"}).content == b"GGUF"
    tmp_path.joinpath("model.gguf").unlink()
    assert client.get(path).status_code == 404


def test_a_job_without_reports_or_a_gguf_file_says_so(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    path = f"/v1/fine_tuning/jobs/{finished(daemon, tmp_path).id}/export"
    assert client.get(f"{path}/reports").json() == {"object": "list", "data": []}
    answer = client.get(f"{path}/gguf")
    assert answer.status_code == 404 and "ask for one with export" in answer.text


def test_a_file_that_shrinks_meanwhile_breaks_the_download(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    archive = Archive.of(tmp_path, "m")
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(OSError, match="shorter"):
        list(archive.chunks())
