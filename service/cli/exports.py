"""Bringing an exported model here: a copy from this machine's disk, or an archive from afar."""

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
