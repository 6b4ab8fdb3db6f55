"""What memory to spare may add to a placement: kept layers, versions, weights at hand. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .config import TrainConfig
from .homes import Placement, Tier
from .host_share import with_two_versions
from .model import ModelSpec
from .sizes import Sizes
from .strategies import STRATEGIES


def with_second_versions(sizes: Sizes, placements: Sequence[Placement]) -> Iterator[Placement]:
    """Host memory to spare lets updates there be made before the norm is known."""
    config = sizes.config
    for placement in placements:
        if config.device == "cuda" and config.clip_way == "auto" and may_guess(config, placement):
            yield with_two_versions(sizes.spec, config, placement)


def with_cached_weights(sizes: Sizes, placements: Sequence[Placement]) -> Iterator[Placement]:
    """Device memory to spare keeps the weights of what is on NVMe: they are read no more, and the
    state once. Updates are then made when the norm is known."""
    config = sizes.config
    free = config.strategy == "auto" and config.clip_way in ("auto", "serial")
    if config.device != "cuda" or not free:
        return
    for placement in placements:
        far = tuple(i for i, tier in enumerate(placement.tiers) if tier == "nvme")
        alone = "host" not in placement.tiers and not placement.frozen
        if far and alone and placement.keep_grads:
            yield replace(placement, cached=far)


def may_guess(config: TrainConfig, placement: Placement) -> bool:
    """Whether updates in host memory may be undone: so must those on NVMe that come with them."""
    tiers, each = placement.trained_tiers, config.commit_every_steps == 1
    return placement.keep_grads and "host" in tiers and (each or "nvme" not in tiers)


def with_kept(
    sizes: Sizes, config: TrainConfig, placement: Placement, device_limit: int
) -> Placement:
    """The placement with as many kept layers as fit: the last ones are needed again first."""
    num_layers = sizes.spec.num_layers

    def keeping(count: int) -> Placement:
        if count == 0 and not placement.keep_layers:
            return placement
        return replace(placement, keep_layers=tuple(range(num_layers - count, num_layers)))

    if config.recompute != "auto":
        return keeping(num_layers if config.recompute == "none" else 0)
    spare = device_limit - sizes.device(placement)
    # Where all are kept, none needs room to be computed again; and kept weights come on top of the
    # activations, for some layers: begin with more than can fit, give up as many as it takes.
    spare += sizes.working_bytes
    count = min(num_layers, max(0, spare // max(1, sizes.kept_layer_bytes)))
    kept = keeping(count)
    while count and sizes.device(kept) > device_limit:
        count -= 1
        kept = keeping(count)
    return kept


def needs_kept_grads(spec: ModelSpec, config: TrainConfig, tiers: Sequence[Tier]) -> bool:
    """Whether final gradients must wait for the update.

    They need not when each record's update can be written beside the committed state at once:
    its factor is known, and a step that turns out not to be finite is dropped with its writes. A
    strategy that updates in one pass at the end keeps them all the same.
    """
    homes = zip(spec.records, tiers, strict=True)
    updated = {tier for record, tier in homes if record.base is None}
    in_place = updated != {"nvme"} or config.commit_every_steps > 1
    late = STRATEGIES[config.strategy].settings.get("clip_way") == config.clip_way == "serial"
    return config.clip_mode == "exact" or in_place or late
