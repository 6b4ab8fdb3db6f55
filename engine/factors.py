"""Factors that scale a step's gradients before their update, by clip mode and by what is known."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .clip import clip_factor
from .gradients import Gradients
from .model import RecordLayout
from .workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The verdict on a step's gradient: its norm and the factor that scales it."""

    norm: float
    factor: float
    clipped: bool
    skipped: bool


class Factors:
    """The factors of one step. Those on the device are fp32 scalars."""

    def __init__(self, work: Workspace, gradients: Gradients, last_norm: float | None) -> None:
        """`last_norm` is the norm of the step before, for clip mode `lagged`."""
        self._work = work
        self._mode = work.config.clip_mode
        self._gradients = gradients
        self._last_norm = last_norm
        self._one = torch.ones((), device=work.device)
        self._settled: Settled | None = None

    def early(self, layout: RecordLayout) -> Tensor:
        """In backward: the factor of modes that know it, and 1 as the guess of `exact`."""
        if self._mode == "per_layer":
            norm = self._gradients.own_norm(layout)
            return clip_factor(norm, self._work.config.max_grad_norm)
        return self._lagged() if self._mode == "lagged" else self._one

    def final(self, layout: RecordLayout) -> Tensor:
        """Behind backward."""
        if self._mode == "exact":
            return self._one * self.settle().factor
        return self.early(layout)

    def on_host(self, layout: RecordLayout, *, late: bool) -> float | Tensor:
        """For the processor: on the device where that alone knows it."""
        if self._mode == "per_layer" or (self._mode == "lagged" and not late):
            return self.early(layout)
        return self.settle().factor if late else 1.0

    def settle(self) -> Settled:
        """The norm over all records, in record order, and what follows from it; once per step."""
        if self._settled is None:
            norm = self._gradients.norm()
            factor = self._one
            if self._mode == "exact":
                factor = clip_factor(norm, self._work.config.max_grad_norm)
            elif self._mode == "lagged":
                factor = self._lagged()
            skipped = not bool(torch.isfinite(norm))
            self._settled = Settled(
                norm=float(norm),
                factor=float(factor),
                clipped=not skipped and bool(factor < 1),
                skipped=skipped,
            )
        return self._settled

    def _lagged(self) -> Tensor:
        if self._last_norm is None:
            return self._one
        norm = torch.tensor(self._last_norm, dtype=torch.float64, device=self._work.device)
        return clip_factor(norm, self._work.config.max_grad_norm)
