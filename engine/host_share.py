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
    if not _is_free(config):
        return
    for placement in placements:
        choices = {
            updated_on_host(spec, placement.tiers, part / _PARTS, placement.host_versions)
            for part in range(1, _PARTS + 1)
        }
        for on_host in sorted(choices - {()}):
            yield replace(placement, on_host=on_host)


def all_on_host(
    spec: ModelSpec, config: TrainConfig, tiers: Sequence[Tier]
) -> list[tuple[int, ...]]:
    """Of the trained layers in host memory none and all, where the plan chooses which of them the
    processor updates; nothing where it does not."""
    return [(), tuple(_layers_in_host(spec, tiers))] if _is_free(config) else []


def other_host_updates(
    spec: ModelSpec, config: TrainConfig, placement: Placement
) -> Iterator[Placement]:
    """The placement with about as many layers updated by the processor, chosen in other ways: the
    first or the last ones, or evenly spread from either end, and one layer more or less."""
    if not placement.on_host or not _is_free(config):
        return
    layers = _layers_in_host(spec, placement.tiers)
    asked = len(placement.on_host)
    counts = range(max(1, asked - 1), min(len(layers), asked + 1) + 1)
    ways = (_last, _first, _spread_from_last, _spread_from_first)
    for on_host in sorted({way(layers, count) for count in counts for way in ways}):
        yield replace(placement, on_host=on_host)


def with_same_host_updates(
    spec: ModelSpec, config: TrainConfig, placement: Placement, tiers: tuple[Tier, ...]
) -> Placement:
    """The placement with other homes; of the layers in host memory the processor updates those
    that come at the same places among them, or as many as the run asks for."""
    if not _is_free(config):
        on_host = asked_on_host(spec, config, tiers, host_versions=placement.host_versions)
        return replace(placement, tiers=tiers, on_host=on_host)
    before, after = (_layers_in_host(spec, homes) for homes in (placement.tiers, tiers))
    updated = set(placement.on_host)
    places = [i for i, layer in enumerate(before) if layer in updated]
    on_host = tuple(after[place] for place in places if place < len(after))
    return replace(placement, tiers=tiers, on_host=on_host)


def _last(layers: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(layers[len(layers) - count :])


def _first(layers: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(layers[:count])


def _spread_from_last(layers: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(layers[(i + 1) * len(layers) // count - 1] for i in range(count))


def _spread_from_first(layers: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(layers[i * len(layers) // count] for i in range(count))


def _layers_in_host(spec: ModelSpec, tiers: Sequence[Tier]) -> list[int]:
    """Trained layers there, by record."""
    trained = spec.trained_indices
    return [i for i in spec.indices["layer"] if tiers[i] == "host" and i in trained]


def _is_free(config: TrainConfig) -> bool:
    """Whether the plan chooses what the processor updates."""
    if config.optimizer_device != "auto" or config.optimizer_host_share is not None:
        return False
    return config.device != "cuda" or config.state_format == "exact"


def with_two_versions(spec: ModelSpec, config: TrainConfig, placement: Placement) -> Placement:
    """The placement with a second version of what is trained in host memory."""
    on_host = asked_on_host(spec, config, placement.tiers, host_versions=2)
    return replace(placement, host_versions=2, on_host=on_host)


def asked_on_host(
    spec: ModelSpec, config: TrainConfig, tiers: Sequence[Tier], *, host_versions: int = 1
) -> tuple[int, ...]:
    """What the processor updates because the run says so."""
    share = 1.0 if config.optimizer_device == "host" else config.optimizer_host_share or 0.0
    if not share:
        return ()
    return updated_on_host(spec, tiers, share, host_versions)


def updated_on_host(
    spec: ModelSpec, tiers: Sequence[Tier], share: float, host_versions: int
) -> tuple[int, ...]:
    """The given share of the trained layers in host memory, by record: the last ones, or, with two
    versions, evenly spread from the last one on."""
    layers = _layers_in_host(spec, tiers)
    count = round(share * len(layers))
    return (_last if host_versions == 1 else _spread_from_last)(layers, count)
