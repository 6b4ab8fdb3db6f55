"""What a benchmark trains: random weights, straight in their tiers, and rows of random tokens."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from .data import Microbatch, make_microbatch
from .frozen import write_frozen
from .frozen_pieces import frozen_pieces
from .model import CODE_BLOCK, RecordLayout
from .mover import Mover
from .packing import Arrangement
from .reserved import reserve
from .state import clear_state, write_weights
from .visits import update_visit
from .workspace import Workspace

_PIECE_ELEMENTS = 2**26  # drawn at a time; some hundreds of megabytes with what coding them takes


def fill_random(work: Workspace, mover: Mover, seed: int, tell: Callable[[str], None]) -> None:
    """Give every record random weights (norms one) and zero moments, straight in its tier.

    Adapters begin in the middle of a run: with both matrices random, so that both have gradients.
    Weights are drawn on the device, some at a time: what a step's copies touch has been allocated
    already. What else is planned of the device is reserved in the end; MemoryGone where others have
    taken it.
    """
    generator = torch.Generator(work.device).manual_seed(seed)
    slot = work.ring[0]
    tenth = max(1, len(work.spec.records) // 10)
    for i, layout in enumerate(work.spec.records):
        if i % tenth == 0:
            tell(f"random weights: record {i} of {len(work.spec.records)}")
        clear_state(work.residents.get(layout.name, slot.device), work.records[layout.name])
        for start, weights in _random_pieces(layout, generator):
            if layout.base is None:
                write_weights(work.state(layout, slot), weights, start)
            else:
                write_frozen(layout, work.frozen(layout, slot), weights, start)
        if layout.name in work.cached:
            work.cached[layout.name].take_from(slot.device)
        slot.done = work.transfer.fence()
        visit = update_visit(i)
        if mover.needs_slot(visit):
            mover.release(visit, slot)()
            slot.free.order()
    reserve(work.plan, work.device)


def _random_pieces(
    layout: RecordLayout, generator: torch.Generator
) -> Iterator[tuple[int, Tensor]]:
    """A record's fp32 weights, 1-D, piece by piece with their first elements."""
    largest = max(param.num_elements // param.shape[0] for param in layout.params)
    for start, piece in frozen_pieces(layout, max(_PIECE_ELEMENTS, CODE_BLOCK * largest), 1):
        weights = torch.zeros(piece.num_elements, device=generator.device)
        (param,) = piece.params
        drawn = weights[: param.num_elements]
        if len(param.full_shape) == 1:
            drawn.fill_(1.0)
        else:
            drawn.normal_(0, 0.02, generator=generator)
        yield start, weights


def random_batches(
    work: Workspace, tokens_per_row: int, generator: torch.Generator
) -> list[Microbatch]:
    """Rows of one length, arranged as a run would arrange them."""
    arrangement = Arrangement.of(work.config)
    shape = (work.config.batch_rows, tokens_per_row)
    rows = torch.randint(0, work.spec.vocab_size, shape, generator=generator).numpy()
    groups = arrangement.groups(np.full(len(rows), tokens_per_row))
    return [
        make_microbatch([(rows[i], rows[i]) for i in group], group.tolist(), arrangement)
        for group in groups
    ]
