"""Small JSON files that are there whole, on the drive, or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the file with `values`; after a crash it holds the old content or the new."""
    temporary = path.with_suffix(".part")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote; None when there is no such file."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return values
