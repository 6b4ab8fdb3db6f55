"""Config, tokenizer and generation config of a GGUF file, as the files that a directory has."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .gguf_model import read_gguf_model, token_ids
from .gguf_tokenizer import build_tokenizer
from .model_files import ModelError

ASSETS_VERSION = 1  # raise it when the same metadata shall give other files


def prepare_assets(path: Path, cache_dir: Path) -> Path:
    """The directory of a GGUF file's assets under `cache_dir`, made if it is not there yet.

    Its name is a digest of the file's metadata, from which alone it is made; it appears by a
    rename, so that it is whole even if two processes make it at once. Raises ModelError.
    """
    model = read_gguf_model(path)
    assets_dir = cache_dir / f"gguf-v{ASSETS_VERSION}-{model.header.digest}"
    if assets_dir.exists():
        return assets_dir
    tokenizer = build_tokenizer(model.header.metadata, path, max_tokens=model.spec.max_positions)
    if len(tokenizer) > model.spec.vocab_size:
        raise ModelError(
            f"{path}: {len(tokenizer)} tokens, but only {model.spec.vocab_size} rows of the "
            f"embedding; convert the model again"
        )
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial_dir = Path(tempfile.mkdtemp(prefix=".gguf-", dir=cache_dir))
    try:
        tokenizer.save_pretrained(partial_dir)
        _write_json(partial_dir / "config.json", model.spec.config)
        _write_json(partial_dir / "generation_config.json", token_ids(model.header.metadata))
        _publish(partial_dir, assets_dir)
    finally:
        shutil.rmtree(partial_dir, ignore_errors=True)
    return assets_dir


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _publish(partial_dir: Path, assets_dir: Path) -> None:
    try:
        partial_dir.rename(assets_dir)
    except OSError:
        if not assets_dir.exists():  # otherwise another process made the same files first
            raise
