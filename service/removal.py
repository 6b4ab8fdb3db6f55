"""Removing what jobs made: whoever dies half-way leaves nothing that nobody knows of."""

import shutil
from pathlib import Path

from .jobs import InUse, ModelRecord
from .journal import Journal
from .logs import get_logger

REMOVED = ".removed"

log = get_logger("headrace.api")


def remove_model(journal: Journal, model: ModelRecord) -> None:
    """Forget a model and remove all that its job exported, the GGUF file too. Blocking; InUse.

    Each folder is renamed first, so that `finish_removals` finds what is left of it.
    """
    if users := journal.jobs_using(model.name):
        raise InUse(model.name, users)
    job = journal.job(model.job_id)
    exports = job.engine.get("exports", []) if job else []
    folders = dict.fromkeys([Path(model.path), *(Path(report["path"]) for report in exports)])
    moved = {path: _aside(path) for path in folders if path.is_dir()}
    for path, aside in moved.items():
        path.rename(aside)
    try:
        journal.remove_model(model.name)
    except BaseException:
        for path, aside in moved.items():
            aside.rename(path)
        raise
    for path in folders:
        _remove(moved.get(path, path), model.name)


def finish_removals(jobs_dir: Path) -> None:
    """Remove what a process that ended has left of folders that it removed; at start."""
    for path in jobs_dir.glob(f"*/.*{REMOVED}"):
        _remove(path, path.parent.name)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}{REMOVED}")


def _remove(path: Path, name: str) -> None:
    try:
        shutil.rmtree(path)  # a folder alone, no link and no file
    except FileNotFoundError:
        log.info("the deleted model had no folder any more", model=name, path=str(path))
    except OSError as e:
        log.warning("a deleted model's folder stays", model=name, path=str(path), reason=str(e))
