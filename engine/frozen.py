"""Frozen weights: stored once, in the form that streams, and turned into what is computed with."""

from torch import Tensor

from .base_codes import decode, encode
from .model import CODE_BLOCK, CodedFormat, RecordLayout
from .state import FrozenViews, join_master, split_master
from .state_record import coded_elements


def write_frozen(layout: RecordLayout, views: FrozenViews, weights: Tensor, start: int) -> None:
    """Store fp32 `weights` (1-D, whole blocks) as the record's elements from `start` on.

    What is stored as bfloat16 is rounded to the nearest, as loading in bfloat16 would round it.
    """
    coded = coded_elements(layout)
    stop = start + weights.numel()
    if start < coded:
        base = _code(layout)
        assert views.codes is not None and views.scales is not None
        per_code = coded // views.codes.numel()
        codes = views.codes[start // per_code : stop // per_code]
        encode(weights, codes, views.scales[start // CODE_BLOCK : stop // CODE_BLOCK], base)
    elif views.lo is None:
        views.hi[start - coded : stop - coded].copy_(weights)
    else:
        split_master(weights, views.hi[start:stop], views.lo[start:stop])


def read_frozen(layout: RecordLayout, views: FrozenViews, out: Tensor) -> None:
    """Write all weights of the record into `out`, 1-D, float32 or bfloat16."""
    coded = coded_elements(layout)
    if coded:
        assert views.codes is not None and views.scales is not None
        decode(views.codes, views.scales, out[:coded], _code(layout))
    if views.lo is None:
        out[coded:].copy_(views.hi)
    else:
        join_master(views.hi, views.lo, out)


def _code(layout: RecordLayout) -> CodedFormat:
    assert layout.base == "nf4" or layout.base == "int8"
    return layout.base
