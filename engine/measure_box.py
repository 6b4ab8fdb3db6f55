"""Measuring what no model's shape has a part in: copies, memory, updates by the processor."""

from dataclasses import replace

import torch
from torch import Tensor

from headrace.storage import HostArena, Transfer

from .host_optimizer import measure_cpu_optimizer
from .measure_visit import measure_visit
from .rates import Rates, default_rates
from .stopwatch import Stopwatch, now

MIB = 2**20
ROUNDS = {"cpu": 5, "cuda": 1}  # in which figures are taken; a GPU is nobody else's
PART_SECONDS = {False: 0.1, True: 1.0}  # of one figure; the latter in a full calibration
# Of a layer on a processor so many times that: its speed changes by a third within tenths of a
# second, and a round of fewer calls finds less than the mean more often than not.
LAYER_PARTS = {"cpu": 5, "cuda": 1}
# What is touched where no memory is spared: more than the caches hold.
COPY_BYTES = {"cpu": 128 * MIB, "cuda": 256 * MIB}
ELEMENTS = {"cpu": 2**22, "cuda": 2**24}  # of a state that the processor updates
_COPY_BUFFERS = {"cpu": 4, "cuda": 2}  # of them in host memory: on a GPU the others are there
_ELEMENT_BYTES = 26  # of an update aside: two versions of the state and a gradient


def round_clock(
    device: str, measured: str | None = None, *, full: bool, parts: int = 1
) -> Stopwatch:
    """For one figure in one round of a calibration for `device`; times calls there, or on the
    device that is `measured`, for so many `parts` of what a figure has."""
    rounds = ROUNDS[device]
    least = max(1, 3 // rounds)
    seconds = parts * PART_SECONDS[full] / rounds
    return Stopwatch(torch.device(measured or device), seconds, least=least)


def measure_box(device: str, *, full: bool = False, most_bytes: int | None = None) -> Rates:
    """One round of the rates that no model's shape has a part in; others are a usual box's.

    Takes no more than `most_bytes` of host memory, where that is given: less is touched then.
    """
    clock, on_host = round_clock(device, full=full), round_clock(device, "cpu", full=full)
    size, num_elements = COPY_BYTES[device], ELEMENTS[device]
    if most_bytes is not None:
        size = min(size, max(1, most_bytes // _COPY_BUFFERS[device] // MIB) * MIB)
        num_elements = min(num_elements, most_bytes // _ELEMENT_BYTES)
    up, down, both = _copies(clock, size)
    host_memory = _memory_rate(on_host, min(size, COPY_BYTES["cpu"]))
    on_gpu = device == "cuda"
    return replace(
        default_rates(device),
        origin="measured",
        measured_at=now(),
        h2d=up,
        d2h=down,
        both=both,
        host_memory=host_memory,
        device_memory=_memory_rate(clock, COPY_BYTES[device]) if on_gpu else host_memory,
        visit_seconds=measure_visit() if device == "cpu" else 0.0,  # a GPU works on meanwhile
        work={
            "host_update": _updates(on_host, num_elements, aside=False),
            "host_update_aside": _updates(on_host, num_elements, aside=True),
        },
    )


def _updates(clock: Stopwatch, num_elements: int, *, aside: bool) -> float:
    return measure_cpu_optimizer(
        clock.part_seconds, num_elements=num_elements, aside=aside, least=2 * clock.least - 1
    )


def _copies(clock: Stopwatch, size: int) -> tuple[float, float, float | None]:
    """Bytes a second up, down, and each way at once (None where one thread makes all copies)."""
    on_gpu = clock.device.type == "cuda"
    with HostArena(2 * size, pin=on_gpu) as arena, Transfer(clock.device) as transfer:
        slots = [arena.carve(size) for _ in range(2)]
        device = [torch.zeros(size, dtype=torch.uint8, device=clock.device) for _ in range(2)]

        def host(i: int) -> Tensor:
            return slots[i].tensor(torch.uint8, size)

        def up() -> None:
            transfer.to_device(host(0), device[0]).wait()

        def down() -> None:
            transfer.to_host(device[1], host(1)).wait()

        def both() -> None:
            fence = transfer.to_device(host(0), device[0])
            down()
            fence.wait()

        rates = [size / clock.seconds(one) for one in (up, down)]
        each = size / clock.seconds(both) if on_gpu else None
    return rates[0], rates[1], each


def _memory_rate(clock: Stopwatch, size: int) -> float:
    """Bytes a second read and written by a copy of `size` bytes within one memory."""
    source = torch.ones(size // 4, device=clock.device)
    target = torch.empty_like(source)
    return 2 * size / clock.seconds(lambda: target.copy_(source))
