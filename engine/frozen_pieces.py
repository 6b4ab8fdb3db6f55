"""Frozen records in pieces that are converted one at a time. Pure, no torch."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, lcm

from headrace.storage import PAGE_BYTES, round_up

from .model import CODE_BLOCK, ModelSpec, RecordLayout

_LEAST_PIECE = 2**18  # elements that are converted at a time, where memory is no matter


def frozen_pieces(
    layout: RecordLayout, max_elements: int, head_dim: int
) -> Iterator[tuple[int, RecordLayout]]:
    """A record as pieces of whole rows and blocks of codes, each with its first element.

    A piece is a record of one parameter, of at most `max_elements` with the zeros that fill its
    last block. Rows of one head stay together, since some files have an order of their own there.
    """
    for param in layout.params:
        columns = param.num_elements // param.shape[0]
        unit = _unit_rows(columns, head_dim)
        step = max_elements // (unit * columns) * unit
        assert step > 0, f"{param.name}: {unit} rows of {columns} > {max_elements}"
        for first in range(0, param.shape[0], step):
            count = min(step, param.shape[0] - first)
            part = replace(
                param,
                shape=(count, *param.shape[1:]),
                offset=0,
                row_start=param.row_start + first,
            )
            whole = round_up(part.num_elements, CODE_BLOCK)
            piece = replace(layout, params=(part,), num_elements=whole)
            yield param.offset + first * columns, piece


def piece_bytes(spec: ModelSpec) -> int:
    """Bytes of a float32 buffer through which every frozen record can be converted; 0 for none."""
    units = [
        _unit_rows(columns, spec.head_dim) * columns
        for record in spec.records
        if record.base is not None
        for param in record.params
        for columns in (param.num_elements // param.shape[0],)
    ]
    return round_up(4 * max(_LEAST_PIECE, *units), PAGE_BYTES) if units else 0


def _unit_rows(columns: int, head_dim: int) -> int:
    return lcm(head_dim, CODE_BLOCK // gcd(CODE_BLOCK, columns))
