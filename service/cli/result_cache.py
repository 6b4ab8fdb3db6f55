"""Results of long looks at files, kept by the key of what was looked at."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..json_file import read_or_forget, write_json

KEPT = 64


def default_folder() -> Path:
    """Where the user's caches lie."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headrace" / "data-check"


def remembered(
    folder: Path, key: str, make: Callable[[], dict[str, Any]], *, fresh: bool
) -> dict[str, Any]:
    """The result of that key, with `cached`: made by an earlier call, or made and kept now.

    One that says that it is not `complete`, or of what is `unreadable` (for want of a package, it
    may be), is not kept. `fresh` looks again. What cannot be kept, on a full drive say, or is
    damaged there, costs a second look, no more.
    """
    path = folder / f"{key}.json"
    if not fresh and (found := read_or_forget(path)):
        with suppress(OSError):
            os.utime(path)
        return {**found, "cached": True}
    made: dict[str, Any] = json.loads(json.dumps(make(), default=str))
    if made.get("complete", True) and not made.get("unreadable"):
        with suppress(OSError):
            _keep(path, made)
    return {**made, "cached": False}


def _keep(path: Path, made: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, made)
    entries = sorted(path.parent.glob("*.json"), key=lambda entry: entry.stat().st_mtime_ns)
    for old in entries[:-KEPT]:
        old.unlink(missing_ok=True)
