"""Where the state of each record lives, and what else takes memory by choice. Pure, no torch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

MAX_STAGING = 4  # more staging slots would not make a drive faster

Tier = Literal["device", "host", "nvme"]
NearTier = Literal["device", "host"]
Order = Literal["layers", "microbatches"]
Way = Literal["serial", "speculative", "deferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the records' state lives, and what else takes memory by choice."""

    tiers: tuple[Tier, ...]  # home of each record's state
    num_slots: int
    keep_layers: tuple[int, ...] = ()  # layers whose activations stay: nothing is recomputed
    activation_tiers: tuple[Tier, ...] = ()  # where each layer's input waits; (): on the device
    keep_grads: bool = True  # final gradients wait for their update
    grad_tier: NearTier = "host"  # where, for records whose state is not on the device
    on_host: tuple[int, ...] = ()  # records in host memory that the processor updates there
    host_versions: int = 1  # 2: those in host memory may be updated before the norm is known
    cached: tuple[int, ...] = ()  # records whose weights stay on the device, the rest elsewhere
    order: Order = "layers"  # of a step: what goes through what
    frozen: tuple[int, ...] = ()  # records that are only read

    def early(self, way: Way) -> frozenset[int]:
        """Records that are updated in their backward visit, before the norm is known."""
        return early_records(self.tiers, self.host_versions, way).difference(self.frozen)

    @property
    def trained_tiers(self) -> frozenset[Tier]:
        """Where what is trained lives."""
        if not self.frozen:
            return frozenset(self.tiers)
        frozen = set(self.frozen)
        return frozenset(tier for i, tier in enumerate(self.tiers) if i not in frozen)

    def parked(self, tier: Tier) -> tuple[int, ...]:
        """Layers whose input waits on that tier, host or NVMe, from forward to backward."""
        if tier not in self.activation_tiers:
            return ()
        return tuple(i for i, one in enumerate(self.waits) if one == tier)

    @property
    def waits(self) -> tuple[Tier, ...]:
        """Where each layer's input waits: that of a kept layer with the rest of it."""
        return _waits(self.activation_tiers, self.keep_layers)

    @property
    def streams(self) -> bool:
        """Whether a step moves anything over the drives."""
        return "nvme" in self.tiers or bool(self.parked("nvme"))

    @property
    def num_staging(self) -> int:
        """Host slots that NVMe records pass through; commits need one in any case."""
        return min(self.num_slots, MAX_STAGING) if "nvme" in self.tiers else 1


@lru_cache(maxsize=1024)
def _waits(inputs: tuple[Tier, ...], kept: tuple[int, ...]) -> tuple[Tier, ...]:
    """As Placement.waits; asked again and again of the same few inputs."""
    if inputs.count("device") == len(inputs):
        return inputs
    there = set(kept)
    return tuple("device" if i in there else tier for i, tier in enumerate(inputs))


def early_records(tiers: Sequence[Tier], host_versions: int, way: Way) -> frozenset[int]:
    """Records whose update can be made in backward and undone: beside the committed state on
    NVMe, or in a second version in host memory. Only the speculative way does so."""
    if way != "speculative":
        return frozenset()
    there: tuple[Tier, ...] = ("nvme", "host") if host_versions > 1 else ("nvme",)
    return frozenset([i for i, tier in enumerate(tiers) if tier in there])


def versions_at_home(record: int, host_versions: int, frozen: Collection[int]) -> int:
    """Versions of a record's state; one of what is `frozen`, which does not change."""
    return 1 if record in frozen else host_versions


def keeps_grad_on_device(
    record: int, tiers: Sequence[Tier], grad_tier: NearTier, on_host: Collection[int]
) -> bool:
    """Whether a record's kept gradient waits on the device: beside its state, or by choice.

    What the processor updates has its gradient in host memory.
    """
    return tiers[record] == "device" or (grad_tier == "device" and record not in on_host)
