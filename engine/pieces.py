"""Reading files in pieces into a record's flat component."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .model import ParamSpec, RecordLayout
from .model_files import ModelError


def pread_exactly(file_descriptor: int, buffer: Any, offset: int, path: Path) -> None:
    """Fill a writable byte buffer from a file; ModelError when the file ends before."""
    view = memoryview(buffer)
    got = 0
    while got < len(view):
        count = os.preadv(file_descriptor, [view[got:]], offset + got)
        if count == 0:
            raise ModelError(
                f"{path}: wanted {len(view)} bytes at {offset}, got {got}; the file was cut short "
                f"while it was being read"
            )
        got += count


def split_record(
    layout: RecordLayout, max_elements: int, unit_rows: int
) -> Iterator[tuple[int, RecordLayout]]:
    """A record as pieces of whole rows, at most `max_elements` long, with their first elements.

    Each piece is a record of one parameter, without gaps. Rows of a matrix stay together in
    groups of `unit_rows` (some files order the rows of a head in their own way).
    """
    for param in layout.params:
        rows = param.shape[0]
        row_elements = param.num_elements // rows
        unit = unit_rows if len(param.shape) == 2 else 1
        step = max_elements // (row_elements * unit) * unit
        assert step > 0, f"{param.name}: {unit} rows of {row_elements} > {max_elements}"
        for first in range(0, rows, step):
            count = min(step, rows - first)
            piece = replace(
                param,
                shape=(count, *param.shape[1:]),
                offset=0,
                row_start=param.row_start + first,
            )
            yield (
                param.offset + first * row_elements,
                replace(layout, params=(piece,), num_elements=piece.num_elements),
            )


def fill_record(
    layout: RecordLayout,
    target: torch.Tensor,
    read_param: Callable[[ParamSpec, torch.Tensor], None],
) -> None:
    """Write every element of a record: parameters by `read_param`, the gaps between them zero.

    Raises ModelError for a weight that is not finite as bfloat16, which no state format can hold.
    """
    end = 0
    for param in layout.params:
        target[end : param.offset].zero_()
        end = param.offset + param.num_elements
        values = target[param.offset : end]
        read_param(param, values)
        _check_finite(param, values)
    target[end : layout.num_elements].zero_()


def _check_finite(param: ParamSpec, values: torch.Tensor) -> None:
    extremes = torch.stack(torch.aminmax(values))  # a NaN is both of them
    if not torch.isfinite(extremes.to(torch.bfloat16)).all():
        raise ModelError(
            f"tensor {param.name} of the checkpoint holds values from {extremes[0]:.4g} to "
            f"{extremes[1]:.4g}; a model with such weights cannot be trained: copy it again, or "
            f"use another checkpoint"
        )
