import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from fakes_daemon import FakeDaemon, serving, some_job
from headrace.service.archive import Archive
from headrace.service.jobs import JobRecord

Served = tuple[FakeDaemon, httpx2.Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("exports"))
    with serving(daemon) as url, httpx2.Client(base_url=url) as client:
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
    assert client.get(path, params={"checkpoint": "ftckpt_none"}).status_code == 404


def test_what_is_not_there_is_not_exported(served: Served, tmp_path: Path) -> None:
    daemon, client = served
    gone = finished(daemon, tmp_path / "gone")
    unfinished = daemon.journal.add_job(some_job(status="cancelled"))
    for job_id in (gone.id, unfinished.id, "ftjob-none"):
        assert client.get(f"/v1/fine_tuning/jobs/{job_id}/export").status_code == 404


def test_a_file_that_shrinks_meanwhile_breaks_the_download(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    archive = Archive.of(tmp_path, "m")
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(OSError, match="shorter"):
        list(archive.chunks())
