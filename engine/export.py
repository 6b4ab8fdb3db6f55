"""A trained model as a Hugging Face directory, written in bounded memory, whole or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from headrace.storage import NoSpace, sync_directory

from .families import FAMILIES
from .model import ModelSpec, ParamSpec, RecordLayout
from .model_files import INDEX_FILE, ModelError, file_inside
from .shards import DTYPE_CODES, Shard, index_of, plan_shards

PIECE_ELEMENTS = 2**20  # converted and written at a time
ASSET_PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template.*",
    "generation_config.json",
    "LICENSE*",
    "NOTICE*",
)

ReadPieces = Callable[[RecordLayout], Iterator[tuple[ParamSpec, torch.Tensor]]]


def export_checkpoint(
    target_dir: Path,
    spec: ModelSpec,
    *,
    assets_dir: Path,
    dtype: str,
    shard_bytes: int = 4 * 10**9,
    read_pieces: ReadPieces,
) -> None:
    """Write the model to `target_dir`, which must not exist, as `dtype` safetensors.

    `read_pieces(layout)` yields the record's parameters in order, each in one or more pieces of
    whole rows, with their float32 values (1-D), valid until the next one is asked for. Tokenizer,
    chat template, generation config and licence come from `assets_dir`. The directory appears by
    a rename, after everything is on the disk; what an interrupted export left behind is removed
    by the next one. Raises FileExistsError, ValueError, NoSpace, and ModelError for a weight that
    `dtype` cannot hold.
    """
    if dtype not in DTYPE_CODES:
        raise ValueError(f"export dtype is {dtype!r}; wanted one of {', '.join(DTYPE_CODES)}")
    shards = plan_shards(spec, dtype=dtype, shard_bytes=shard_bytes)
    files = {"config.json": _config(spec, dtype)}
    if len(shards) > 1:
        files[INDEX_FILE] = index_of(shards)
    pieces = (piece for record in spec.records for piece in read_pieces(record))
    write_directory(target_dir, shards, pieces, files, assets_dir=assets_dir)


def write_directory(
    target_dir: Path,
    shards: Sequence[Shard],
    pieces: Iterator[tuple[ParamSpec, torch.Tensor]],
    files: Mapping[str, dict[str, Any]],
    *,
    assets_dir: Path,
) -> None:
    """Write shards, JSON files and assets to a directory that appears whole or not at all.

    `pieces` are the shards' parameters in order, each in one or more pieces of whole rows.
    """
    with placed(target_dir) as folder:
        check_space(folder, sum(shard.payload_bytes + len(shard.header) for shard in shards))
        _write_shards(folder, shards, pieces)
        for name, values in files.items():
            write_json(folder / name, values)
        _copy_assets(assets_dir, folder)


@contextmanager
def placed(target_dir: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `target_dir` by a rename once all of it is on the disk.

    What an interrupted export left behind is removed. Raises FileExistsError.
    """
    if target_dir.exists() or target_dir.is_symlink():
        raise FileExistsError(f"{target_dir} already exists; an export overwrites nothing")
    target_dir.parent.mkdir(parents=True, exist_ok=True)
    partial_dir = target_dir.parent / f".{target_dir.name}.partial"
    shutil.rmtree(partial_dir, ignore_errors=True)
    partial_dir.mkdir()
    try:
        yield partial_dir
        sync_directory(partial_dir)
        partial_dir.rename(target_dir)
    except BaseException:
        shutil.rmtree(partial_dir, ignore_errors=True)
        raise
    sync_directory(target_dir.parent)


def check_space(directory: Path, wanted: int) -> None:
    """NoSpace when so many bytes do not fit beside what the drive holds."""
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise NoSpace(
            f"the export wants {wanted} bytes in {directory.parent}, {free} are free; "
            f"free some space, or export to another directory or in bfloat16"
        )


def _write_shards(
    directory: Path, shards: Sequence[Shard], pieces: Iterator[tuple[ParamSpec, torch.Tensor]]
) -> None:
    """Each record is read once: shards hold the parameters in the order of the records."""
    for shard in shards:
        with (directory / shard.file_name).open("xb") as file:
            file.write(shard.header)
            for param in shard.params:
                left = param.num_elements
                while left:
                    piece, values = next(pieces)
                    _write_values(file, piece, values, getattr(torch, shard.dtype))
                    left -= piece.num_elements
            flush(file)


def _write_values(
    file: BinaryIO, param: ParamSpec, values: torch.Tensor, dtype: torch.dtype
) -> None:
    for first in range(0, param.num_elements, PIECE_ELEMENTS):
        piece = values[first : first + PIECE_ELEMENTS]
        # Rounding keeps order and a NaN is an extreme too, so the extremes speak for all.
        extremes = torch.stack(torch.aminmax(piece))
        if not torch.isfinite(extremes.to(dtype)).all():
            raise ModelError(
                f"tensor {param.name} holds values from {extremes[0]:.4g} to {extremes[1]:.4g}, "
                f"which {dtype} cannot hold; export as bfloat16 or float32, and look at the "
                f"training loss if they are not finite"
            )
        file.write(piece.to(dtype).view(torch.uint8).numpy().data)


def _config(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """The model's own config with the dtype of the export, under the key that it already uses.

    `auto_map` names code beside the source's config that no export carries and nothing here ran.
    """
    config = {key: value for key, value in spec.config.items() if key != "auto_map"}
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    architectures = [FAMILIES[spec.family].architecture]
    return {"architectures": architectures, **config, **dict.fromkeys(keys, dtype)}


def _copy_assets(assets_dir: Path, directory: Path) -> None:
    names = {path.name for pattern in ASSET_PATTERNS for path in assets_dir.glob(pattern)}
    for name in sorted(names):
        with file_inside(assets_dir, name).open("rb") as source:
            with (directory / name).open("xb") as target:
                shutil.copyfileobj(source, target)
                flush(target)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """A new JSON file, on the disk when this returns."""
    with path.open("xb") as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")
        flush(file)


def flush(file: BinaryIO) -> None:
    """What was written to the file is on the disk when this returns."""
    file.flush()
    os.fsync(file.fileno())
