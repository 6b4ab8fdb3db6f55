"""What a benchmark trains: random weights, straight in their tiers, and rows of random tokens."""

import numpy as np
import torch

from .data import Microbatch, make_microbatch
from .frozen import write_frozen_whole
from .mover import Mover
from .packing import Arrangement
from .state import clear_state, write_weights
from .visits import update_visit
from .workspace import Workspace


def fill_random(work: Workspace, mover: Mover, seed: int) -> None:
    """Give every record random weights (norms one) and zero moments, straight in its tier.

    Adapters begin in the middle of a run: with both matrices random, so that both have gradients.
    """
    generator = torch.Generator(work.device).manual_seed(seed)
    slot = work.ring[0]
    for i, layout in enumerate(work.spec.records):
        master = torch.zeros(layout.num_elements, device=work.device)
        for param in layout.params:
            piece = master[param.offset : param.offset + param.num_elements]
            if len(param.full_shape) == 1:
                piece.fill_(1.0)
            else:
                piece.normal_(0, 0.02, generator=generator)
        if layout.base is None:
            place = work.residents.get(layout.name, slot.device)
            clear_state(place, work.records[layout.name])
            write_weights(work.state(layout, slot), master)
        else:
            write_frozen_whole(layout, work.frozen(layout, slot), master)
        if layout.name in work.cached:
            work.cached[layout.name].take_from(slot.device)
        slot.done = work.transfer.fence()
        visit = update_visit(i)
        if mover.needs_slot(visit):
            mover.release(visit, slot)()
            slot.free.order()


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
