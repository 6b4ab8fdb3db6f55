"""What tells tokens their places: rotary cosines and sines, by kind of layer."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .attention import Documents

# By kind of layer: rotary cosines and sines, (1, tokens, head), and the packed documents.
Positions = Mapping[str, tuple[Tensor, Tensor, Documents | None]]

_STRETCHED = ("dynamic", "longrope")  # kinds of rotary positions that depend on a row's length


@dataclass(frozen=True, kw_only=True)  # no slots: the kinds of ropes are looked up once
class Places:
    """Turns places into rotary positions.

    `new_rotary` makes a rotary module: one that stretches with the longest row it has seen would
    make the result depend on what came before, and so on where a run was resumed. `kinds` are those
    of layers; with `by_kind` each has rotary positions of its own.
    """

    new_rotary: Callable[[], Any]
    kinds: Iterable[str]
    by_kind: bool
    device: torch.device
    dtype: torch.dtype

    def of(self, num_tokens: int, lengths: Tensor, *, packed: bool) -> Positions:
        """Positions of whole rows, or of the documents that are packed into one.

        `lengths` (int64, on the host) are those of the rows, `num_tokens` wide, or of the
        documents: places start again with each.
        """
        documents = Documents.of(lengths, self.device) if packed else None
        places = torch.arange(num_tokens)[None] if documents is None else documents.position_ids()
        pieces: Sequence[Tensor] = [places]
        if self._rope_types.intersection(_STRETCHED):
            pieces = [torch.arange(length)[None] for length in lengths.tolist() if length]
        return self._turned(pieces, documents, lambda parts: _join(parts, num_tokens, packed))

    def key(self, num_tokens: int, lengths: Tensor, *, packed: bool) -> Hashable:
        """What `of`, with the same arguments, goes by: where this is equal, positions are."""
        goes_by_lengths = packed or self._rope_types.intersection(_STRETCHED)
        return num_tokens, packed, tuple(lengths.tolist()) if goes_by_lengths else ()

    def after(self, starts: Sequence[int], num_tokens: int) -> Positions:
        """Positions of the next `num_tokens` of rows, behind so many of each."""
        pieces: Sequence[Tensor] = [torch.arange(at, at + num_tokens)[None] for at in starts]
        if not self._rope_types.intersection(_STRETCHED):
            pieces = [torch.cat(list(pieces))]
        return self._turned(pieces, None, torch.cat)

    @property
    def turning_point(self) -> int | None:
        """The length beyond which a row's first tokens have other positions than up to there."""
        if "longrope" not in self._rope_types:
            return None
        return int(self.new_rotary().config.original_max_position_embeddings)

    @cached_property
    def _rope_types(self) -> set[str]:
        found = self.new_rotary().rope_type  # one, or one for each kind of layer
        return set(found.values()) if isinstance(found, dict) else {found}

    def _turned(
        self,
        pieces: Sequence[Tensor],
        documents: Documents | None,
        join: Callable[[list[Tensor]], Tensor],
    ) -> Positions:
        """Positions of the pieces, each by itself, joined."""
        like = torch.empty((1, 1, 1), dtype=self.dtype, device=self.device)

        def turn(*kind: str) -> tuple[Tensor, Tensor, Documents | None]:
            parts = [
                self.new_rotary().to(self.device)(like, piece.to(self.device), *kind)
                for piece in pieces
            ]
            cos, sin = (join(list(part)) for part in zip(*parts, strict=True))
            return cos, sin, documents

        if self.by_kind:
            return {kind: turn(kind) for kind in self.kinds}
        return dict.fromkeys(self.kinds, turn())


def _join(parts: Sequence[Tensor], num_tokens: int, packed: bool) -> Tensor:
    """Pieces of (1, tokens, head) behind each other, or one below the other and as wide as all."""
    if packed:
        return torch.cat(list(parts), dim=1)
    return torch.cat([nn.functional.pad(p, (0, 0, 0, num_tokens - p.shape[1])) for p in parts])
