"""Bringing an exported model here: a copy from this machine's disk, or an archive from afar."""

import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..client import Client
from ..whole_file import in_place_of
from .output import CliError, Exit

MOST_CHECKPOINTS = 1000  # of a job that are listed


def copy_export(source: Path, target: Path) -> int:
    """Copy a directory of model files so that `target` is whole or not there; bytes copied."""
    with _whole(target) as part:
        shutil.copytree(source, part)
    return _size(target)


def fetch_export(client: Client, job_id: str, checkpoint: str | None, target: Path) -> int:
    """Download the archive of a model and unpack it as `target`; its bytes."""
    query = f"?{urlencode({'checkpoint': checkpoint})}" if checkpoint else ""
    path = f"/v1/fine_tuning/jobs/{job_id}/export{query}"
    with _whole(target) as part:
        part.mkdir()
        archive = part / ".archive.tar"
        client.download(path, archive)
        try:
            with tarfile.open(archive) as files:
                files.extractall(part, filter="data")
            archive.unlink()
            (folder,) = part.iterdir()  # the archive holds one folder
            for file in folder.iterdir():
                file.rename(part / file.name)
            folder.rmdir()
        except (tarfile.TarError, ValueError) as error:
            reason = f"what came from {client.url} is no archive of a model: {error}"
            raise CliError(reason, Exit.FAILED) from error
    return _size(target)


def checkpoint_folder(client: Client, job_id: str, name: str) -> str:
    """Where a checkpoint of that job lies on the daemon's machine, by its id or name. CliError that
    tells which there are."""
    path = f"/v1/fine_tuning/jobs/{job_id}/checkpoints"
    found = client.call("GET", path, params={"limit": MOST_CHECKPOINTS})["data"]
    for one in found:
        if name in (one["id"], one["fine_tuned_model_checkpoint"]):
            return str(client.model(one["fine_tuned_model_checkpoint"])["path"])
    ids = ", ".join(f"{one['id']} (step {one['step_number']})" for one in found)
    has = f"it has, newest first: {ids}" if found else "it has none"
    raise CliError(f"job {job_id} has no checkpoint {name!r}; {has}", Exit.REFUSED)


def copy_gguf(client: Client, job_id: str, report: Mapping[str, Any] | None, target: Path) -> int:
    """Bring the GGUF file of that report here as `target`; its bytes. CliError without one."""
    if report is None:
        reason = f'job {job_id} has no GGUF file; ask for one with export: [{{"format": "gguf"}}]'
        raise CliError(reason, Exit.REFUSED)
    (name,) = (file["name"] for file in report["files"])
    source = Path(report["path"]) / name
    if not source.is_file():
        return client.download(f"/v1/fine_tuning/jobs/{job_id}/export/gguf", target)
    with _whole(target) as part:
        shutil.copyfile(source, part)
    return target.stat().st_size


def find_report(job: Mapping[str, Any], *, gguf: bool) -> dict[str, Any] | None:
    """The report of a job's GGUF file, or of its model; old jobs have none."""
    reports = (job.get("engine") or {}).get("exports") or []
    return next((one for one in reports if (one["format"] == "gguf") is gguf), None)


def describe_check(report: Mapping[str, Any] | None) -> str:
    """What was found when the export was read back, in a line of its own; nothing if it was not."""
    check = (report or {}).get("check")
    if not check:
        return ""
    positions = check["num_positions"]
    return (
        f"\nread back: rounding to the export's dtype moves logits by up to "
        f"{check['rounding_diff']:.3g}, anything else by {check['unexplained_diff']:.3g} "
        f"({check['tolerance']:.3g} allowed);"
        f" the same token likeliest at {100 * check['argmax_agreement']:.1f} % of "
        f"{positions} positions"
    )


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A path to fill, which becomes `target` at the end. CliError where that cannot be written."""
    try:
        with in_place_of(target) as part:
            yield part
    except OSError as error:
        raise CliError(f"cannot write {target}: {error}", Exit.FAILED) from error


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
