"""How an update waits for the norm of its step: which way a run takes, and a step. Pure."""

from .config import ClipWay, TrainConfig
from .homes import Placement, Way


def choose_way(config: TrainConfig, placement: Placement) -> ClipWay:
    """How the update waits for the norm; `auto` is decided step by step."""
    # Weights cached on the device are changed once; one microbatch alone knows no factor either.
    if placement.cached or placement.order == "microbatches":
        return "serial"
    if not placement.keep_grads:
        return "speculative"
    # Between commits the working state is rewritten in place, so there is nothing to redo from.
    tiers = placement.trained_tiers
    redone = config.commit_every_steps == 1 and "nvme" in tiers
    if redone or (placement.host_versions > 1 and "host" in tiers):
        return config.clip_way
    if config.clip_way in ("serial", "deferred"):
        return config.clip_way
    # A deferred update reads the state instead of the weights: one read less where it is streamed.
    streams = tiers != {"device"}
    return "deferred" if streams and config.commit_every_steps > 1 else "serial"


def planned_way(config: TrainConfig, placement: Placement) -> Way:
    """The way that predictions go by: where `auto` bets on no clipping with state in host memory,
    losing the bet costs no more than not to have bet; on a drive it does."""
    way = choose_way(config, placement)
    if way != "auto":
        return way
    return "serial" if "nvme" in placement.trained_tiers else "speculative"


def next_way(config: TrainConfig, way: ClipWay, *, clipped_last: bool) -> Way:
    """The way of the next step: `auto` bets on no clipping only after a step without it."""
    if way != "auto":
        return way
    return way_without_bet(config) if clipped_last else "speculative"


def way_without_bet(config: TrainConfig) -> Way:
    """The way of a step that is expected to clip."""
    return "deferred" if config.commit_every_steps > 1 else "serial"
