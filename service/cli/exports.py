"""Bringing an exported model here: a copy from this machine's disk, or an archive from afar."""

import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..client import Client
from .output import CliError, Exit


def copy_export(source: Path, target: Path) -> int:
    """Copy a directory of model files so that `target` is whole or not there; bytes copied."""
    with _whole(target) as part:
        shutil.copytree(source, part)
    return _size(target)


def fetch_export(client: Client, job_id: str, checkpoint: str | None, target: Path) -> int:
    """Download the archive of a model and unpack it as `target`; its bytes."""
    query = f"?{urlencode({'checkpoint': checkpoint})}" if checkpoint else ""
    path = f"/v1/fine_tuning/jobs/{job_id}/export{query}"
    archive = target.with_name(f".{target.name}.tar-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        client.download(path, archive)
        with _whole(target) as part, tarfile.open(archive) as files:
            files.extractall(part, filter="data")
            (folder,) = part.iterdir()  # the archive holds one folder
            for file in folder.iterdir():
                file.rename(part / file.name)
            folder.rmdir()
    except tarfile.TarError as error:
        raise CliError(
            f"what came from {client.url} is no archive: {error}", Exit.FAILED
        ) from error
    finally:
        archive.unlink(missing_ok=True)
    return _size(target)


def copy_gguf(client: Client, job_id: str, report: Mapping[str, Any] | None, target: Path) -> int:
    """Bring the GGUF file of that report here as `target`; its bytes. CliError without one."""
    if report is None:
        reason = f'job {job_id} has no GGUF file; ask for one with export: [{{"format": "gguf"}}]'
        raise CliError(reason, Exit.REFUSED)
    (name,) = (file["name"] for file in report["files"])
    source = Path(report["path"]) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.is_file():
        return client.download(f"/v1/fine_tuning/jobs/{job_id}/export/gguf", target)
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        shutil.copyfile(source, part)
        part.rename(target)
    except OSError as error:
        raise CliError(f"cannot write {target}: {error}", Exit.FAILED) from error
    finally:
        part.unlink(missing_ok=True)
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
    """A directory to fill, which becomes `target` at the end and is removed on a failure."""
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        part.rename(target)
    except OSError as error:
        raise CliError(f"cannot write {target}: {error}", Exit.FAILED) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
