"""What records take where they live, summed once for each split of them over the tiers. Pure.

A plan weighs thousands of placements over some hundred splits: of each split the sums are kept.
"""

from collections import defaultdict
from collections.abc import Sequence

from .homes import NearTier, Placement, Tier, keeps_grad_on_device
from .model import ModelSpec

_Split = tuple[tuple[Tier, ...], tuple[int, ...]]  # homes of the records, and which are frozen


class HomeSums:
    """Sums over the records of a model, whose `state_bytes` and kept `grad_bytes` are given."""

    def __init__(
        self, spec: ModelSpec, state_bytes: Sequence[int], grad_bytes: Sequence[int]
    ) -> None:
        self._layers = spec.indices["layer"]
        self._state_bytes = state_bytes
        self._grad_bytes = grad_bytes
        self._states: dict[_Split, dict[tuple[Tier, bool], int]] = {}
        self._gradients: dict[tuple[tuple[Tier, ...], NearTier, tuple[int, ...]], int] = {}
        self._layer_tiers: dict[tuple[Tier, ...], list[Tier]] = {}

    def state(self, placement: Placement, tier: Tier, *, frozen: bool) -> int:
        """Bytes of the state on a tier: of what is frozen, in one version, or of the rest."""
        split = placement.tiers, placement.frozen
        sums = self._states.get(split)
        if sums is None:
            still = set(placement.frozen)
            sums = defaultdict(int)
            for i, (size, home) in enumerate(zip(self._state_bytes, placement.tiers, strict=True)):
                sums[home, i in still] += size
            self._states[split] = sums
        versions = placement.host_versions if tier == "host" and not frozen else 1
        return versions * sums.get((tier, frozen), 0)

    def gradients(self, placement: Placement, *, on_device: bool) -> int:
        """Bytes of the gradients that wait on the device, or elsewhere."""
        if not placement.keep_grads:
            return 0
        tiers, grad_tier, on_host = placement.tiers, placement.grad_tier, placement.on_host
        away = self._gradients.get((tiers, grad_tier, on_host))
        if away is None:
            there = set(on_host)
            away = sum(
                size
                for i, size in enumerate(self._grad_bytes)
                if not keeps_grad_on_device(i, tiers, grad_tier, there)
            )
            self._gradients[tiers, grad_tier, on_host] = away
        return sum(self._grad_bytes) - away if on_device else away

    def kept_elsewhere(self, placement: Placement) -> int:
        """How many of the kept layers have their state on another tier than the device."""
        layers = self._layer_tiers.get(placement.tiers)
        if layers is None:
            layers = [placement.tiers[i] for i in self._layers]
            self._layer_tiers[placement.tiers] = layers
        return sum([layers[i] != "device" for i in placement.keep_layers])
