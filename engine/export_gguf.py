"""A trained model as one GGUF file, written piece by piece in bounded memory.

The gguf package writes everything before the data; the data is put behind it, each piece at its
place, so that neither a tensor nor a stack of experts is ever held whole.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from headrace.storage import round_up

from .export import ReadPieces, check_space, flush, placed
from .gguf_codec import TYPES, encode, row_bytes, type_of
from .gguf_file import PIECE_ELEMENTS, pairs_first
from .gguf_header import DEFAULT_ALIGNMENT, load_gguf_package
from .gguf_metadata import file_metadata, rope_factors
from .gguf_names import ARCHITECTURES, ROPE_FACTORS, GgufPlace, places, stacks
from .model import ModelSpec, ParamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """One tensor of the file: `shape` in torch's order, `start` from the beginning of the data."""

    shape: tuple[int, ...]
    kind: str
    start: int

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.kind, 1 if len(self.shape) == 1 else self.shape[-1])

    @property
    def num_bytes(self) -> int:
        rows = self.shape if len(self.shape) == 1 else self.shape[:-1]
        return prod(rows) * self.row_bytes


def file_name(dtype: str) -> str:
    """The file's name inside the export's directory."""
    return f"model-{TYPES[dtype][0]}.gguf"


def export_gguf(
    target_dir: Path,
    spec: ModelSpec,
    *,
    assets_dir: Path,
    name: str,
    dtype: str,
    read_pieces: ReadPieces,
) -> None:
    """Write the model to one file in `target_dir`, which must not exist; as `export_checkpoint`.

    Matrices are of `dtype` (float32, float16, bfloat16 or q8_0), vectors and routers float32.
    `name` is what the file calls the model. Rows of the pieces must come in whole heads. Raises
    ValueError, FileExistsError, NoSpace, and ModelError for what such a file cannot hold.
    """
    metadata = file_metadata(spec, assets_dir=assets_dir, dtype=dtype, name=name)
    found = places(spec)
    factors = rope_factors(spec)
    tensors = _lay_out(spec, found, dtype, len(factors))
    with placed(target_dir) as folder:
        total = sum(round_up(one.num_bytes, DEFAULT_ALIGNMENT) for one in tensors.values())
        check_space(folder, total)
        path = folder / file_name(dtype)
        _write_head(path, ARCHITECTURES[spec.family], metadata, tensors)
        with path.open("r+b") as file:
            data = round_up(os.fstat(file.fileno()).st_size, DEFAULT_ALIGNMENT)
            file.truncate(data + total)
            if factors:
                values = np.array(factors, dtype=np.float32)
                _pwrite_all(file.fileno(), values, data + tensors[ROPE_FACTORS].start)
            for record in spec.records:
                for param, piece in read_pieces(record):
                    place = found[param.name]
                    tensor = tensors[place.name]
                    rows = piece.numpy().reshape(param.shape[0], -1)
                    if place.in_pairs:
                        rows = pairs_first(rows, spec.head_dim)
                    _write_rows(file.fileno(), data + tensor.start, tensor, place, param, rows)
            flush(file)


def _lay_out(
    spec: ModelSpec, found: Mapping[str, GgufPlace], dtype: str, num_factors: int
) -> dict[str, _Tensor]:
    """The tensors in the order of the file: one after the other, each aligned."""
    shapes = {param.name: param.full_shape for record in spec.records for param in record.params}
    first = {place.name: name for name, place in reversed(list(found.items()))}
    tensors: dict[str, _Tensor] = {}
    start = 0
    for name, count in stacks(found.values()).items():
        shape = shapes[first[name]]
        exact = found[first[name]].exact
        kind = type_of(dtype, shape[-1] if len(shape) > 1 else 1, exact=exact)
        tensors[name] = _Tensor(shape=(count, *shape) if count else shape, kind=kind, start=start)
        start = round_up(start + tensors[name].num_bytes, DEFAULT_ALIGNMENT)
    if num_factors:
        tensors[ROPE_FACTORS] = _Tensor(shape=(num_factors,), kind="F32", start=start)
    return tensors


def _write_head(
    path: Path, arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, _Tensor]
) -> None:
    gguf = load_gguf_package()
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        _add_value(writer, key, value)
    for name, one in tensors.items():
        kind = gguf.GGMLQuantizationType[one.kind]
        writer.add_tensor_info(name, one.shape, np.dtype(np.float32), one.num_bytes, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()


def _add_value(writer: Any, key: str, value: Any) -> None:
    """Under the type that llama.cpp's own converter uses for such a value."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _write_rows(
    file: int, start: int, tensor: _Tensor, place: GgufPlace, param: ParamSpec, rows: Any
) -> None:
    """Put a piece of whole rows of a parameter where it belongs in the tensor at `start`."""
    first = param.row_start + (place.expert or 0) * param.full_shape[0]
    for at, some in _some_rows(rows):
        coded = encode(some + 1 if place.shifted else some, tensor.kind, param.name)
        _pwrite_all(file, coded, start + (first + at) * tensor.row_bytes)


def _some_rows(rows: Any) -> Iterator[tuple[int, Any]]:
    """Coding wants several times a piece in temporaries, so a piece is cut again."""
    step = max(1, PIECE_ELEMENTS // rows.shape[1])
    for first in range(0, len(rows), step):
        yield first, rows[first : first + step]


def _pwrite_all(file: int, values: Any, offset: int) -> None:
    view = memoryview(values.reshape(-1).view(np.uint8))
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count
