"""Texts that the present weights write: all layers stream by once for each token of every text.

The first pass takes in the prompts, each by itself; from then on the rows under way go through the
layers together, a token each, and what the layers remember of them stays on the device.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .data import Microbatch
from .example import NOT_TRAINED
from .forward import ForwardCompute, forward_visits
from .head import head_logits
from .model import RecordLayout
from .mover import Mover
from .recall import Memory
from .visits import Visit
from .workspace import RingSlot, Workspace


class Choose(Protocol):
    """Picks each row's next token."""

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """Tokens for these rows, given their logits, fp32 (rows, vocabulary) on the device."""


@dataclass(slots=True, kw_only=True)
class Written:
    """A text: the ids of its prompt, then those written; `ended` by a token that stops it.

    `is_finite` is false when the model gave a logit that is no number, which ends the text.
    """

    ids: list[int]
    num_prompt: int
    ended: bool = False
    is_finite: bool = True

    @property
    def completion(self) -> list[int]:
        """What was written, with the token that stopped it."""
        return self.ids[self.num_prompt :]


def generate(
    work: Workspace,
    mover: Mover,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    stops: Collection[int],
    choose: Choose,
    on_pass: Callable[[], None] = lambda: None,
) -> list[Written]:
    """Continue every prompt by up to `num_tokens` tokens, or up to one of `stops`.

    A text also ends where the model has no further place. Nothing owed to the weights may be
    pending. No prompt may be empty. `on_pass` is called after each token.
    """
    texts = [Written(ids=list(ids), num_prompt=len(ids)) for ids in prompts]
    room = work.spec.max_positions
    capacity = min(room, max(map(len, prompts), default=0) + num_tokens)
    memory = Memory(
        work.spec,
        num_rows=len(texts),
        capacity=capacity,
        dtype=work.dtype,
        device=work.device,
    )
    under_way = [i for i, text in enumerate(texts) if len(text.ids) < room]
    seen = dict.fromkeys(under_way, 0)  # tokens that the layers remember, by row
    while under_way:
        compute = GenerationCompute(work, memory, _pieces(work, texts, seen, under_way))
        mover.pipeline.run(forward_visits(work), compute.visit)
        on_pass()
        for row, token in _chosen(compute, choose):
            text = texts[row]
            seen[row] = len(text.ids)
            text.is_finite = token is not None
            if token is not None:
                text.ids.append(token)
                text.ended = token in stops
        under_way = [
            i
            for i in under_way
            if texts[i].is_finite
            and not texts[i].ended
            and len(texts[i].completion) < num_tokens
            and len(texts[i].ids) < room
        ]
    return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Next tokens of rows, as many of each, (rows, tokens); `starts` are those seen before."""

    rows: Sequence[int]
    starts: Sequence[int]
    ids: Tensor


def _pieces(
    work: Workspace, texts: Sequence[Written], seen: dict[int, int], under_way: Sequence[int]
) -> list[Piece]:
    """What the layers have not seen yet: whole rows one by one, single tokens together."""
    turning = work.module.places.turning_point
    whole: list[int] = []
    single: list[int] = []
    for row in under_way:
        turns = turning is not None and seen[row] <= turning < len(texts[row].ids)
        (whole if seen[row] == 0 or turns else single).append(row)
    pieces = [Piece(rows=[row], starts=[0], ids=torch.tensor([texts[row].ids])) for row in whole]
    if single:
        newest = torch.tensor([texts[row].ids[-1:] for row in single])
        pieces.append(Piece(rows=single, starts=[seen[row] for row in single], ids=newest))
    return pieces


def _chosen(compute: "GenerationCompute", choose: Choose) -> list[tuple[int, int | None]]:
    """The next token of each row; None where the logits are not finite."""
    rows = [row for piece in compute.pieces for row in piece.rows]
    logits = torch.cat(compute.logits)
    finite = torch.isfinite(logits).all(dim=1).tolist()
    tokens = choose(torch.nan_to_num(logits), rows)
    return [
        (row, token if good else None)
        for row, token, good in zip(rows, tokens, finite, strict=True)
    ]


class GenerationCompute(ForwardCompute):
    """The compute stage of one pass: the layers see the pieces, and remember them.

    `logits` are those of each row's newest token, fp32, by piece.
    """

    def __init__(self, work: Workspace, memory: Memory, pieces: Sequence[Piece]) -> None:
        super().__init__(work, [_as_microbatch(piece) for piece in pieces])
        self.pieces = pieces
        self.logits: list[Tensor] = []
        self._memory = memory
        self.positions = [
            work.module.places.after(piece.starts, piece.ids.shape[1]) for piece in pieces
        ]

    def _forward(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        weights = self._layer_weights(layout, slot)
        for m, piece in enumerate(self.pieces):
            recall = self._memory.recall(layout.name, piece.rows, piece.starts)
            self.hidden[m] = self.work.module.forward_next(
                layout, weights, self.hidden[m], self.positions[m], recall
            )

    def _head(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        norm_weight = self._norm_weight(layout, slot)
        self.logits = [
            head_logits(self.work.module, self.hidden[m][:, -1], norm_weight, self.work.table)
            for m in range(len(self.pieces))
        ]


def _as_microbatch(piece: Piece) -> Microbatch:
    """Tokens of which none is trained."""
    rows, tokens = piece.ids.shape
    return Microbatch(
        ids=piece.ids,
        labels=torch.full_like(piece.ids, NOT_TRAINED),
        row_indices=tuple(piece.rows),
        num_tokens=piece.ids.numel(),
        num_trained=0,
        lengths=torch.full((rows,), tokens),
        packed=False,
    )


def greedy(logits: Tensor, rows: Sequence[int]) -> list[int]:
    """The likeliest token of each row, the first of several."""
    found: list[int] = logits.argmax(dim=1).tolist()
    return found


class Drawn:
    """Draws tokens by their probabilities at a temperature, from a source of its own for each row,
    so that a text does not depend on the others."""

    def __init__(self, temperature: float, seed: int) -> None:
        self._temperature = temperature
        self._seed = seed
        self._sources: dict[int, torch.Generator] = {}

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """Drawn on the host, so that every device draws alike."""
        wide = logits.cpu().double()  # the largest becomes 0, which no temperature makes infinite
        chances = ((wide - wide.amax(dim=1, keepdim=True)) / self._temperature).softmax(dim=1)
        return [
            int(torch.multinomial(chance, 1, generator=self._source(row)))
            for chance, row in zip(chances, rows, strict=True)
        ]

    def _source(self, row: int) -> torch.Generator:
        if row not in self._sources:
            self._sources[row] = torch.Generator().manual_seed(self._seed + row)
        return self._sources[row]
