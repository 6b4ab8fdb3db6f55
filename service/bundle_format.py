"""What the bundles of jobs have in common, for those who write them and those who read. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

FORMAT = 1  # raise it when an older reader would take a bundle for what it is not


def weight_hashes(exports: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The hashes of the files that hold weights, by format and name."""
    return {
        f"{export['format']}/{file['name']}": file["sha256"]
        for export in exports
        for file in export["files"]
        if file["name"].endswith((".safetensors", ".gguf"))
    }
