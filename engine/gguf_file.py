"""Weights of a GGUF file into records: dequantised in pieces, in Hugging Face's row order."""

from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from .gguf_header import load_gguf_package, read_gguf_header
from .gguf_model import READABLE_TYPES, entries_by_checkpoint_name
from .gguf_names import places
from .model import ModelSpec, ParamSpec, RecordLayout
from .pieces import fill_record, pread_exactly
from .tensor_table import TensorEntry, check_tensors

PIECE_ELEMENTS = 2**18  # dequantising wants several times this in temporaries


class GgufSource:
    """The weights of a GGUF file. A context manager; not safe for two threads."""

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        """Read the header again and check it against the spec; ModelError when they differ."""
        self._entries = entries_by_checkpoint_name(read_gguf_header(path), spec)
        self._places = places(spec)
        check_tensors(spec, self._entries, READABLE_TYPES, path)
        self._head_dim = spec.head_dim
        self._gguf = load_gguf_package()
        self._file = path.open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def read_record(self, layout: RecordLayout, target: torch.Tensor) -> None:
        """Fill `target` (float32, 1-D, CPU, `layout.num_elements` long) with the record's weights.

        Every element is written; alignment gaps become zero. Raises ModelError when the file is
        shorter than its header said.
        """
        fill_record(layout, target, self._read_param)

    def _read_param(self, param: ParamSpec, target: torch.Tensor) -> None:
        entry = self._entries[param.name]
        place = self._places[param.name]
        unit = self._head_dim if place.in_pairs else 1  # rows that must be read together
        columns = prod(param.shape[1:])
        values = target.numpy().reshape(-1, columns)
        step = unit * max(1, PIECE_ELEMENTS // (unit * columns))
        for first in range(0, len(values), step):
            count = min(step, len(values) - first)
            rows = self._read_rows(entry, param.row_start + first, count)
            if place.in_pairs:
                rows = halves_first(rows, unit)
            values[first : first + count] = rows - 1 if place.shifted else rows

    def _read_rows(self, entry: TensorEntry, first: int, count: int) -> Any:
        """Rows of a tensor as float32 (count, columns). Rows of a vector are its elements."""
        row_bytes = entry.num_bytes // entry.shape[0]
        raw = np.empty((count, row_bytes), dtype=np.uint8)
        start = entry.start + first * row_bytes
        pread_exactly(self._file.fileno(), raw.reshape(-1), start, entry.path)
        return self._gguf.dequantize(raw, self._gguf.GGMLQuantizationType[entry.dtype])


def halves_first(rows: Any, head_dim: int) -> Any:
    """Undo llama.cpp's order of query and key rows: within each head, pairs become halves.

    llama.cpp rotates elements 2i and 2i + 1 of a head together, Hugging Face's Llama i and
    i + head_dim / 2. `rows` is (heads * head_dim, columns); so is the result.
    """
    paired = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def pairs_first(rows: Any, head_dim: int) -> Any:
    """What `halves_first` undoes: within each head, halves become pairs."""
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
