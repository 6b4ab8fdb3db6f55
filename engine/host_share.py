"""Which layers in host memory the processor updates, of a share that is asked for or weighed. Pure.

Updates that begin when the norm is known run beside the next step's forward pass, which comes to
the last layers last. Those that begin in backward, with a second version to write, share the whole
pass with the link that serves the other layers: spread evenly, neither waits for the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .config import TrainConfig
from .homes import Placement, Tier
from .model import ModelSpec

_PARTS = 12  # shares that are weighed


def with_host_updates(
    spec: ModelSpec, config: TrainConfig, placements: Iterable[Placement]
) -> Iterator[Placement]:
    """The processor may update some of what lives in host memory while the device updates the
    rest; where that is left to the plan, and of the exact format alone, whose rate is measured."""
    if config.optimizer_device != "auto" or config.optimizer_host_share is not None:
        return
    if config.device == "cuda" and config.state_format != "exact":
        return
    for placement in placements:
        choices = {
            updated_on_host(spec, placement.tiers, part / _PARTS, placement.host_versions)
            for part in range(1, _PARTS + 1)
        }
        for on_host in sorted(choices - {()}):
            yield replace(placement, on_host=on_host)


def with_two_versions(spec: ModelSpec, config: TrainConfig, placement: Placement) -> Placement:
    """The placement with a second version of what is trained in host memory."""
    on_host = asked_on_host(spec, config, placement.tiers, host_versions=2)
    return replace(placement, host_versions=2, on_host=on_host)


def asked_on_host(
    spec: ModelSpec, config: TrainConfig, tiers: Sequence[Tier], *, host_versions: int = 1
) -> tuple[int, ...]:
    """What the processor updates because the run says so."""
    share = 1.0 if config.optimizer_device == "host" else config.optimizer_host_share or 0.0
    return updated_on_host(spec, tiers, share, host_versions)


def updated_on_host(
    spec: ModelSpec, tiers: Sequence[Tier], share: float, host_versions: int
) -> tuple[int, ...]:
    """The given share of the trained layers in host memory, by record: the last ones, or, with two
    versions, evenly spread from the last one on."""
    records = enumerate(zip(spec.records, tiers, strict=True))
    layers = [
        i for i, (r, tier) in records if tier == "host" and r.kind == "layer" and r.base is None
    ]
    count = round(share * len(layers))
    if host_versions == 1:
        return tuple(layers[len(layers) - count :])
    return tuple(layers[(i + 1) * len(layers) // count - 1] for i in range(count))
