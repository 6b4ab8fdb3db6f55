"""Small JSON files that are there whole, on the drive, or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .whole_file import write_whole


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the file with `values`; after a crash it holds the old content or the new."""
    with write_whole(path) as file:
        json.dump(values, file, indent=1)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote; None when there is no such file."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return values


def read_or_forget(path: Path) -> dict[str, Any]:
    """The object in a file that can be done without: empty where there is none to be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
