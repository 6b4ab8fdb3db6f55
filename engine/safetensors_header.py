"""Headers of safetensors files and their index, checked as strictly as the format allows. Pure.

A file is: u64 little-endian length of the header; the header, JSON from name to dtype, shape and
data_offsets (byte range from the end of the header); the data, without holes or overlaps.
"""

from math import prod
from pathlib import Path
from typing import Any, Literal, TypeGuard

from .model_files import (
    HEADER_BYTES_CAP,
    INDEX_FILE,
    SINGLE_FILE,
    ModelError,
    file_inside,
    parse_json_object,
    read_json_file,
)
from .tensor_table import TensorEntry

SourceDtype = Literal["float32", "float16", "bfloat16"]

# The format's names of the dtypes that are read and written, and torch's.
FLOAT_DTYPES: dict[str, SourceDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
COPY_AGAIN = "the file is damaged or was not copied whole: copy it again"


def read_checkpoint(model_dir: Path) -> dict[str, TensorEntry]:
    """Every tensor of a directory's model.safetensors, or of the shards that its index names.

    Reads headers only. Raises ModelError for any inconsistency.
    """
    if (model_dir / SINGLE_FILE).exists():
        return read_header(file_inside(model_dir, SINGLE_FILE))
    weight_map = _read_weight_map(model_dir)
    entries: dict[str, TensorEntry] = {}
    for shard in sorted(set(weight_map.values())):
        for name, entry in read_header(file_inside(model_dir, shard)).items():
            if name in entries:
                raise ModelError(
                    f"{model_dir}: tensor {name} is both in {entries[name].path.name} and in "
                    f"{shard}; remove the shards of another model from the directory"
                )
            entries[name] = entry
    for name, shard in weight_map.items():
        if name not in entries or entries[name].path.name != shard:
            raise ModelError(
                f"{model_dir / INDEX_FILE} says that tensor {name} is in {shard}, which does not "
                f"hold it; index and shards are of different models: copy them again"
            )
    return entries


def _read_weight_map(model_dir: Path) -> dict[str, str]:
    weight_map = read_json_file(model_dir, INDEX_FILE).get("weight_map")
    where = model_dir / INDEX_FILE
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{where} has no weight_map from tensors to files; copy it again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise ModelError(f"{where}: tensor {name} is in {shard!r}; wanted a .safetensors file")
    return weight_map


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file, by name; ModelError when the file is not whole and sound."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or header_bytes > size - 8:
            raise ModelError(
                f"{path} has {size} bytes; wanted at least {8 + header_bytes} for its header; "
                f"{COPY_AGAIN}"
            )
        if header_bytes > HEADER_BYTES_CAP:
            raise ModelError(
                f"{path}: its header claims {header_bytes} bytes; wanted at most {HEADER_BYTES_CAP}"
            )
        header = parse_json_object(file.read(header_bytes), f"{path}: its header")
    header.pop("__metadata__", None)
    data_start = 8 + header_bytes
    entries = [_entry(path, name, value, data_start) for name, value in header.items()]
    _check_contiguous(path, entries, data_start, size)
    return {entry.name: entry for entry in entries}


def _entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise ModelError(f"{path}: tensor {name} is described by {value!r}; {COPY_AGAIN}")
    dtype, shape = value.get("dtype"), value.get("shape")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ModelError(f"{path}: tensor {name} has the unknown dtype {dtype!r}")
    if not _are_counts(shape):
        raise ModelError(f"{path}: tensor {name} has shape {shape!r}; wanted a list of sizes")
    offsets = value.get("data_offsets")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ModelError(f"{path}: tensor {name} has data_offsets {offsets!r}; wanted two numbers")
    wanted, got = prod(shape) * ITEM_BYTES[dtype], offsets[1] - offsets[0]
    if wanted != got:
        raise ModelError(
            f"{path}: tensor {name} ({dtype} {shape}) wants {wanted} bytes, its data_offsets "
            f"{offsets} hold {got}; {COPY_AGAIN}"
        )
    return TensorEntry(
        path=path,
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        start=data_start + offsets[0],
        num_bytes=got,
    )


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_contiguous(path: Path, entries: list[TensorEntry], start: int, size: int) -> None:
    """The data is exactly the tensors, one behind the other, to the end of the file."""
    position = start
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.num_bytes)):
        if entry.start != position:
            kind = "overlaps the one before" if entry.start < position else "leaves a hole"
            raise ModelError(f"{path}: tensor {entry.name} {kind} in the data; {COPY_AGAIN}")
        position += entry.num_bytes
        if position > size:
            raise ModelError(
                f"{path} has {size} bytes, but tensor {entry.name} ends at byte {position}; "
                f"{COPY_AGAIN}"
            )
    if position != size:
        raise ModelError(
            f"{path} has {size} bytes; wanted {position}, where its last tensor ends; {COPY_AGAIN}"
        )
