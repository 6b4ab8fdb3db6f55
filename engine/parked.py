"""Layer inputs that wait for their backward pass: where, and in which order they come back. Pure.

A tier farther away is taken for the first layers: their inputs wait longest.
"""

from collections.abc import Collection, Mapping

from .homes import Order, Tier

NUM_ACTIVATION_BUFFERS = 4  # on the device, of those on their way to a tier: two down, two up
NUM_PINNED_BUFFERS = 4  # in host memory, of those on their way to NVMe and back

Item = tuple[int, int]  # layer, microbatch


def parked_tiers(
    num_layers: int, first_backward_layer: int, *, nvme: int = 0, host: int = 0
) -> tuple[Tier, ...]:
    """Where each layer's input waits: so many first ones on NVMe, the next in host memory, the rest
    on the device. Layers that backward does not come to leave nothing behind."""
    near = num_layers - first_backward_layer - nvme - host
    counts: list[tuple[Tier, int]] = [
        ("device", first_backward_layer), ("nvme", nvme), ("host", host), ("device", near)
    ]  # fmt: skip
    return tuple(tier for tier, count in counts for _ in range(count))


def fetched_after(
    layers: Collection[int], num_microbatches: int, order: Order
) -> Mapping[Item, list[Item]]:
    """What backward comes back to, in order, once the input of the item that it is listed by has
    been kept: everything of the step, or of the microbatch where they come one by one."""
    if not layers:
        return {}
    down = sorted(layers, reverse=True)
    each = range(num_microbatches)
    if order == "microbatches":
        return {(down[0], m): [(layer, m) for layer in down] for m in each}
    return {(down[0], num_microbatches - 1): [(layer, m) for layer in down for m in each]}
