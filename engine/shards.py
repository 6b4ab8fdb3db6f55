"""Safetensors shards: which tensor goes where, their headers and their index. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

from headrace.storage import DTYPE_BYTES

from .model import ModelSpec, ParamSpec
from .safetensors_header import FLOAT_DTYPES

HEADER_MULTIPLE = 4096  # the data starts on a page, so that readers can use direct I/O
DTYPE_CODES = {str(dtype): code for code, dtype in FLOAT_DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file: its parameters in the order of the spec, with all pieces of a table together."""

    file_name: str
    params: tuple[ParamSpec, ...]
    dtype: str

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Full shape of each tensor, in the order of the data."""
        return {param.name: param.full_shape for param in self.params}

    @property
    def payload_bytes(self) -> int:
        """Bytes of the data behind the header."""
        return sum(map(prod, self.shapes.values())) * DTYPE_BYTES[self.dtype]

    @property
    def header(self) -> bytes:
        """Length and JSON, padded with spaces to a whole page."""
        fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + prod(shape) * DTYPE_BYTES[self.dtype]
            fields[name] = {
                "dtype": DTYPE_CODES[self.dtype],
                "shape": list(shape),
                "data_offsets": [start, stop],
            }
            start = stop
        text = json.dumps(fields, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % HEADER_MULTIPLE)
        return len(text).to_bytes(8, "little") + text


def plan_shards(spec: ModelSpec, *, dtype: str, shard_bytes: int) -> list[Shard]:
    """Whole tensors in the order of the spec, a new shard where one would pass `shard_bytes`.

    A single larger tensor has a shard of its own. One shard is named model.safetensors.
    """
    groups: list[list[ParamSpec]] = [[]]
    filled = 0
    for pieces in _tensors(spec):
        num_bytes = prod(pieces[0].full_shape) * DTYPE_BYTES[dtype]
        if filled and filled + num_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].extend(pieces)
        filled += num_bytes
    return [
        Shard(file_name=_file_name(i, len(groups)), params=tuple(group), dtype=dtype)
        for i, group in enumerate(groups)
    ]


def _tensors(spec: ModelSpec) -> Iterator[list[ParamSpec]]:
    """The pieces of each tensor; they follow each other in the spec."""
    params = (param for record in spec.records for param in record.params)
    for _, pieces in groupby(params, key=lambda param: param.name):
        yield list(pieces)


def _file_name(index: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def index_of(shards: list[Shard]) -> dict[str, Any]:
    """The content of model.safetensors.index.json."""
    return {
        "metadata": {"total_size": sum(shard.payload_bytes for shard in shards)},
        "weight_map": {name: shard.file_name for shard in shards for name in shard.shapes},
    }
