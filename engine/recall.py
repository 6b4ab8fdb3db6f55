"""Keys and values of tokens that a model has seen, so that each next one computes its own alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .model import ModelSpec


@dataclass(frozen=True, slots=True)
class Recall:
    """What one layer remembers of some rows, and where their next tokens go.

    `keys` and `values` are (all rows, key heads, capacity, head); `rows` are the places in them of
    the rows that a layer is given, `starts` how many tokens of each are there already.
    """

    keys: Tensor
    values: Tensor
    rows: Sequence[int]
    starts: Sequence[int]

    def extend(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Take in the next tokens' keys and values, (rows, key heads, tokens, head).

        Returns all of each row so far, (1, key heads, tokens, head), as views.
        """
        found = []
        for i, (row, start) in enumerate(zip(self.rows, self.starts, strict=True)):
            stop = start + key.shape[2]
            self.keys[row, :, start:stop] = key[i]
            self.values[row, :, start:stop] = value[i]
            found.append((self.keys[row : row + 1, :, :stop], self.values[row : row + 1, :, :stop]))
        return found


class Memory:
    """Keys and values of every layer, for `num_rows` rows of up to `capacity` tokens."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (2, num_rows, spec.num_kv_heads, capacity, spec.head_dim)
        self._layers = {
            layout.name: torch.empty(shape, dtype=dtype, device=device)
            for layout in spec.of_kind("layer")
        }

    def recall(self, layer: str, rows: Sequence[int], starts: Sequence[int]) -> Recall:
        """What that layer remembers of these rows, of which so many tokens have been seen."""
        keys, values = self._layers[layer]
        return Recall(keys, values, rows, starts)
