"""Weights of safetensors files into records, in pieces: memory stays bounded."""

from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Self

import torch

from .model import ModelSpec, ParamSpec, RecordLayout
from .model_files import ModelError
from .pieces import fill_record, pread_exactly
from .safetensors_header import FLOAT_DTYPES, ITEM_BYTES, read_checkpoint
from .tensor_table import TensorEntry, check_tensors, tied_copies

PIECE_BYTES = 4 * 2**20  # one system call, and the size of the only buffer


class OpenFiles:
    """Descriptors of the shards, each opened on first use, all closed together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._descriptors: dict[Path, int] = {}

    def descriptor(self, path: Path) -> int:
        """The open file of that path."""
        if path not in self._descriptors:
            self._descriptors[path] = self._stack.enter_context(path.open("rb")).fileno()
        return self._descriptors[path]

    def close(self) -> None:
        """Close all of them."""
        self._descriptors.clear()
        self._stack.close()


class SafetensorsSource:
    """The weights of a Hugging Face directory. A context manager; not safe for two threads."""

    def __init__(self, model_dir: Path, spec: ModelSpec) -> None:
        """Read the headers again and check them against the spec; ModelError when they differ."""
        self._entries = read_checkpoint(model_dir)
        check_tensors(spec, self._entries, FLOAT_DTYPES, model_dir)
        self._files = OpenFiles()
        self._staging = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        copies = tied_copies(spec, self._entries)
        if copies is not None:
            self._check_equal(*copies)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._files.close()

    def read_record(self, layout: RecordLayout, target: torch.Tensor) -> None:
        """Fill `target` (float32, 1-D, CPU, `layout.num_elements` long) with the record's weights.

        Every element is written; alignment gaps become zero. Raises ModelError when a file is
        shorter than its header said.
        """
        fill_record(layout, target, self._read_param)

    def _read_param(self, param: ParamSpec, target: torch.Tensor) -> None:
        entry = self._entries[param.name]
        item_bytes = ITEM_BYTES[entry.dtype]
        start = entry.start + param.row_start * prod(param.full_shape[1:]) * item_bytes
        step = PIECE_BYTES // item_bytes
        for first in range(0, param.num_elements, step):
            piece = target[first : first + step]
            raw = self._read(entry, start + first * item_bytes, piece.numel() * item_bytes)
            piece.copy_(raw.view(getattr(torch, FLOAT_DTYPES[entry.dtype])))

    def _read(self, entry: TensorEntry, offset: int, num_bytes: int) -> torch.Tensor:
        """Bytes of a file in the staging buffer, valid until the next read."""
        raw = self._staging[:num_bytes]
        pread_exactly(self._files.descriptor(entry.path), raw.numpy(), offset, entry.path)
        return raw

    def _check_equal(self, embedding: TensorEntry, head: TensorEntry) -> None:
        """A tied model may store its table twice; a second table that differs would be lost."""
        same = embedding.dtype == head.dtype and embedding.shape == head.shape
        first = 0
        while same and first < embedding.num_bytes:
            count = min(PIECE_BYTES, embedding.num_bytes - first)
            piece = self._read(embedding, embedding.start + first, count).clone()
            same = torch.equal(piece, self._read(head, head.start + first, count))
            first += count
        if not same:
            self._files.close()
            raise ModelError(
                f"{head.path}: config.json ties {head.name} to {embedding.name}, but the two "
                f"differ; set tie_word_embeddings to false in config.json to train both"
            )
