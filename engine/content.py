"""What decides the account of a file, as one key: equal keys promise equal reports and tokens."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headrace.storage import file_sha256

from .model_files import find_gguf
from .tokenizer import OPTIONAL_FILES, TOKENIZER_FILE

RENDERERS = ("tokenizers", "transformers", "jinja2")  # whose versions may change tokens


def content_key(files: Sequence[Path], **options: Any) -> str:
    """The key of these files, by name and content, judged with these options.

    What judges them is in it too: this room's code and the versions of what it stands on.
    """
    named = [(path.name, file_sha256(path)) for path in files]
    parts = [_rules(), named, options]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain).encode()).hexdigest()


def model_key(model_dir: Path) -> str:
    """A key of what of a model decides tokens: its tokenizer, its template and its config.

    Of a GGUF file, which can be as large as the model, the name, size and time of writing.
    """
    if gguf := find_gguf(model_dir):
        status = gguf.stat()
        parts: list[Any] = [gguf.name, status.st_size, status.st_mtime_ns]
    else:
        names = (TOKENIZER_FILE, *OPTIONAL_FILES, "config.json")
        found = [model_dir / name for name in names if (model_dir / name).is_file()]
        parts = [(path.name, file_sha256(path)) for path in found]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _rules() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    for name in RENDERERS:
        digest.update(f"{name} {version(name)}".encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
