"""Choosing a placement: which records live where, how many slots, what is recomputed. Pure.

On the CPU both memory tiers are the same memory, so state goes to the host when all of it fits
and to NVMe otherwise. On a GPU the shares of state and of kept activations on the device are
searched for the shortest predicted step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .config import TrainConfig
from .sizes import Placement, Sizes, Tier
from .state_record import model_state_bytes

DEFAULT_SLOTS = 3
MIN_SLOTS = 2

# Rates of a data-centre GPU on PCIe 5, used to weigh one choice against another, not to predict.
_FLOPS = 500e12
_LINK_BYTES_PER_SECOND = 50e9
_NVME_BYTES_PER_SECOND = 5e9


def choose_placement(
    sizes: Sizes, config: TrainConfig, *, device_limit: int, host_limit: int
) -> Placement:
    """The best placement that fits the limits (bytes); the last resort when none does."""
    candidates = [
        placement
        for placement in _candidates(sizes, config, device_limit, host_limit)
        if sizes.device(placement) <= device_limit and sizes.host(placement) <= host_limit
    ]
    if not candidates:
        return _last_resort(sizes, config)
    return min(candidates, key=lambda placement: _step_seconds(sizes, placement))


def needs_kept_grads(config: TrainConfig, tiers: Sequence[Tier]) -> bool:
    """Whether final gradients must wait for the update.

    They need not when each record's update can be written beside the committed state at once:
    its factor is known, and a step that turns out not to be finite is dropped with its writes.
    """
    in_place = set(tiers) != {"nvme"} or config.commit_every_steps > 1
    return config.clip_mode == "exact" or in_place


def _candidates(
    sizes: Sizes, config: TrainConfig, device_limit: int, host_limit: int
) -> Iterator[Placement]:
    for tiers in _tier_choices(sizes, config):
        for num_slots in _slot_choices(config):
            base = Placement(
                tiers=tiers, num_slots=num_slots, keep_grads=needs_kept_grads(config, tiers)
            )
            yield _with_kept(sizes, config, base, device_limit)
            if config.device == "cuda":
                parked = Placement(
                    tiers=tiers,
                    num_slots=num_slots,
                    activation_tier="host",
                    keep_grads=base.keep_grads,
                )
                yield _with_kept(sizes, config, parked, device_limit)


def _tier_choices(sizes: Sizes, config: TrainConfig) -> Iterator[tuple[Tier, ...]]:
    """Homes to consider, the nearest first; with `auto` on a GPU, every split by layers."""
    count = len(sizes.spec.records)
    if config.state_tier != "auto":
        yield (config.state_tier,) * count
        return
    if config.device == "cuda":
        coarse = max(1, count // 32)  # a search of seconds for a large model would be felt
        for num_near in range(count, 0, -coarse):
            for far in ("host", "nvme") if num_near < count else ("host",):
                yield (*_repeat(far, count - num_near), *_repeat("device", num_near))
    yield _repeat("host", count)
    yield _repeat("nvme", count)


def _repeat(tier: Tier, count: int) -> tuple[Tier, ...]:
    return (tier,) * count


def _slot_choices(config: TrainConfig) -> Sequence[int]:
    if config.num_slots is not None:
        return (config.num_slots,)
    return range(DEFAULT_SLOTS, MIN_SLOTS - 1, -1)


def _with_kept(
    sizes: Sizes, config: TrainConfig, placement: Placement, device_limit: int
) -> Placement:
    """The placement with as many kept layers as fit: the last ones are needed again first."""
    num_layers = sizes.spec.num_layers

    def keeping(count: int) -> Placement:
        return replace(placement, keep_layers=tuple(range(num_layers - count, num_layers)))

    if config.recompute != "auto":
        return keeping(num_layers if config.recompute == "none" else 0)
    spare = device_limit - sizes.device(placement)
    count = min(num_layers, max(0, spare // max(1, sizes.kept_layer_bytes)))
    # Kept weights come on top of the activations, for some layers: give up as many as it takes.
    while count and sizes.device(keeping(count)) > device_limit:
        count -= 1
    return keeping(count)


def _last_resort(sizes: Sizes, config: TrainConfig) -> Placement:
    """The placement that takes least: what is missing from it is what the refusal says."""
    count = len(sizes.spec.records)
    tiers = _repeat("nvme" if config.state_tier == "auto" else config.state_tier, count)
    keep = range(sizes.spec.num_layers) if config.recompute == "none" else ()
    return Placement(
        tiers=tiers,
        num_slots=config.num_slots or MIN_SLOTS,
        keep_layers=tuple(keep),
        keep_grads=needs_kept_grads(config, tiers),
    )


def _step_seconds(sizes: Sizes, placement: Placement) -> float:
    """A weight for comparing placements: compute and links overlap within each pass."""
    spec = sizes.spec
    layers = spec.num_layers
    pass_flops = 2.0 * spec.num_params * sizes.step_tokens
    recomputed = 1 - len(placement.keep_layers) / layers
    link = nvme = 0.0
    for record, tier in zip(spec.records, placement.tiers, strict=True):
        link += record.num_elements if tier != "device" else 0
        nvme += record.num_elements if tier == "nvme" else 0
    width = sizes.compute_bytes
    parked = sizes.boundary_bytes if placement.activation_tier == "host" else 0

    def seconds(flops: float, bytes_per_element: float, extra_bytes: float = 0) -> float:
        return max(
            flops / _FLOPS,
            (link * bytes_per_element + extra_bytes) / _LINK_BYTES_PER_SECOND,
            nvme * bytes_per_element / _NVME_BYTES_PER_SECOND,
        )

    forward = seconds(pass_flops, width, parked)
    backward = seconds(pass_flops * (2 + recomputed), width, parked)
    state = model_state_bytes(spec, sizes.config.state_format) / spec.num_params
    update = seconds(0, 2 * state + 2)
    slots = 1e-9 * (DEFAULT_SLOTS - placement.num_slots)  # between equals, more slots
    return forward + backward + update + slots
