"""Results of long looks at files, kept by the key of what was looked at."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..json_file import read_json, write_json

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
    may be), is not kept. `fresh` looks again.
    """
    path = folder / f"{key}.json"
    if not fresh and (found := read_json(path)):
        os.utime(path)
        return {**found, "cached": True}
    made: dict[str, Any] = json.loads(json.dumps(make(), default=str))
    if made.get("complete", True) and not made.get("unreadable"):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, made)
        entries = sorted(folder.glob("*.json"), key=lambda entry: entry.stat().st_mtime_ns)
        for old in entries[:-KEPT]:
            old.unlink(missing_ok=True)
    return {**made, "cached": False}
