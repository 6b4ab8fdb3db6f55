"""A create body from a file and the options of the command line."""

from pathlib import Path
from typing import Any

from ..client import Client
from .job_file import read_job_file
from .output import CliError, note
from .settings import apply_settings

FILE_FIELDS = ("training_file", "validation_file")


def job_body(
    job_file: Path | None, given: dict[str, Any], settings: list[str], *, method: str | None = None
) -> dict[str, Any]:
    """The create body: `job_file`'s fields, overridden by what is given on the command line.

    `settings` are NAME=VALUE for any field (`settings.py`). CliError when `model` or
    `training_file` is missing, or the file's method is another one than `method`.
    """
    body = read_job_file(job_file) if job_file else {}
    body |= {name: value for name, value in given.items() if value is not None}
    apply_settings(body, settings, method=method)
    for name, option in (("model", "--model"), ("training_file", "--train")):
        if not body.get(name):
            raise CliError(f"the job names no {name}; give {option}, or a job file that has it")
    return body


def with_uploads(body: dict[str, Any], client: Client, *, beside: Path | None) -> dict[str, Any]:
    """The body with local files replaced by the ids of their uploads.

    A file that the daemon holds already, by name and content, is not uploaded again; a note on
    standard error says so. A name is a local file when it does not look like an id; it is sought
    beside the job file first. CliError when it is not there.
    """
    uploaded = dict(body)
    for field in FILE_FIELDS:
        name = body.get(field)
        if name and not name.startswith("file-"):
            path = local_file(name, field, beside=beside)
            held = client.find_file(path)
            if held:
                note(f"{path} is {held['id']} already, by name and content; not uploaded again")
            uploaded[field] = (held or client.upload(path))["id"]
    return uploaded


def local_file(name: str, field: str, *, beside: Path | None) -> Path:
    """The file of that name, beside the job file or from the working directory."""
    homes = [beside.parent, Path()] if beside else [Path()]
    for home in homes:
        if (path := home / name).is_file():
            return path
    raise CliError(f"{field}: {name!r} is neither the id of a file (file-…) nor a file here")
