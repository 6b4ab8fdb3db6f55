"""Folders of checkpoints: which are kept, and how one is removed."""

import shutil
from pathlib import Path


def drop_old_checkpoints(folder: Path, keep_last: int) -> None:
    """Remove all but the newest `keep_last` of the `step-N` folders."""
    for left in folder.glob(".step-*.removed"):  # by a run that died while it removed it
        shutil.rmtree(left)
    steps = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
    for step in steps[:-keep_last]:
        remove_tree(folder / f"step-{step}")


def remove_tree(path: Path) -> None:
    """Remove a checkpoint folder: renamed first, so that a half-removed one is never found."""
    doomed = path.with_name(f".{path.name}.removed")
    path.rename(doomed)
    shutil.rmtree(doomed)
