"""The files of a model's directory: which of them count, and reading small ones safely. Pure."""

import json
from pathlib import Path
from typing import Any

HEADER_BYTES_CAP = 100_000_000  # of a JSON file, a safetensors header or GGUF metadata
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


class ModelError(ValueError):
    """A model's files are not what they should be: the file, what was wanted, what to do."""


class UnknownFamily(ModelError):
    """A model of a family that has no declared layout; the message lists those that have."""


def file_inside(model_dir: Path, name: str) -> Path:
    """The path of a plain file of the directory, or ModelError.

    A name with separators, and a link that leads out of the directory, are refused: a model that
    somebody sent must not reach other files of this machine.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ModelError(f"{model_dir}: {name!r} is not the name of a file in this directory")
    path = model_dir / name
    if not path.is_file():
        raise ModelError(f"{path} is missing; copy the model again, all of its files")
    if not path.resolve().is_relative_to(model_dir.resolve()):
        raise ModelError(
            f"{path} is a link that leaves its directory, to {path.resolve()}; "
            f"copy the files themselves: cp -rL {model_dir} <new directory>"
        )
    return path


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object whose keys are unique at every level; ModelError naming `where` otherwise."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                raise ValueError(f"the key {key!r} appears twice")
            values[key] = value
        return values

    try:
        parsed = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{where} is not valid JSON: {e}; copy the file again") from e
    if not isinstance(parsed, dict):
        raise ModelError(f"{where} holds a JSON {type(parsed).__name__}; wanted an object")
    return parsed


def read_json_file(model_dir: Path, name: str) -> dict[str, Any]:
    """A JSON file of the directory, as an object. ModelError when missing, too large or broken."""
    path = file_inside(model_dir, name)
    size = path.stat().st_size
    if size > HEADER_BYTES_CAP:
        raise ModelError(f"{path} has {size} bytes; wanted at most {HEADER_BYTES_CAP}")
    return parse_json_object(path.read_bytes(), str(path))


def find_gguf(model: Path) -> Path | None:
    """The GGUF file that `model` is or holds; None for a directory with safetensors.

    Raises ModelError when there is no model at all, or more than one to choose from.
    """
    if model.is_file() and model.suffix == ".gguf":
        return model
    if not model.is_dir():
        raise ModelError(f"{model} is neither a directory nor a .gguf file; give a model's folder")
    if (model / SINGLE_FILE).exists() or (model / INDEX_FILE).exists():
        return None
    names = sorted(path.name for path in model.iterdir())
    found = [name for name in names if name.endswith(".gguf")]
    if len(found) == 1:
        return file_inside(model, found[0])
    if found:
        raise ModelError(
            f"{model} holds {len(found)} GGUF files ({', '.join(found)}); "
            f"keep one in the folder, or give the path of one"
        )
    raise ModelError(f"{model}: {_why_no_weights(names)}")


def _why_no_weights(names: list[str]) -> str:
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return (
            f"its weights are pickle files ({', '.join(pickles[:3])}), which can run code when "
            f"they are read; convert them to safetensors with transformers: "
            f"from_pretrained(...).save_pretrained(..., safe_serialization=True)"
        )
    if "adapter_config.json" in names:
        return (
            "it holds adapters alone, not a model; take the model that they were trained on, or "
            "export the trained one whole (format hf)"
        )
    wanted = f"wanted {SINGLE_FILE}, {INDEX_FILE} or one .gguf file"
    other = [name for name in names if name.endswith(".safetensors")]
    if other:
        return f"{wanted}; found {', '.join(other[:3])}, which no index names"
    return f"it holds no weights; {wanted}; found {', '.join(names[:8]) or 'nothing'}"
