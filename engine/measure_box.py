"""Measuring what no model's shape has a part in: copies, memory, the work beside the products."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from headrace.storage import HostArena, Transfer

from .adamw import AdamScalars
from .clip import round_and_square
from .host_optimizer import measure_cpu_optimizer
from .optimizer import adamw_update
from .rates import Rates, Work, default_rates
from .state import StateViews, join_master, split_master
from .stopwatch import Stopwatch, now

MIB = 2**20
PART_SECONDS = {False: 0.1, True: 1.0}  # of one figure; the latter in a full calibration
COPY_BYTES = {"cpu": 32 * MIB, "cuda": 256 * MIB}
ELEMENTS = {"cpu": 2**22, "cuda": 2**26}


def measure_box(device: str, *, full: bool = False) -> Rates:
    """Rates that no model's shape has a part in; the others are those of a usual box."""
    clock = Stopwatch(torch.device(device), PART_SECONDS[full])
    up, down, both = _copies(clock)
    on_host = measure_cpu_optimizer(PART_SECONDS[full], num_elements=ELEMENTS["cpu"])
    work: dict[Work, float] = {**_works(clock), "host_update": on_host}
    return replace(
        default_rates(device),
        origin="measured",
        measured_at=now(),
        h2d=up,
        d2h=down,
        both=both,
        host_memory=_memory_rate(Stopwatch(torch.device("cpu"), PART_SECONDS[full])),
        device_memory=_memory_rate(clock),
        work=work,
    )


def _copies(clock: Stopwatch) -> tuple[float, float, float | None]:
    """Bytes a second up, down, and each way at once (None where one thread makes all copies)."""
    size = COPY_BYTES[clock.device.type]
    on_gpu = clock.device.type == "cuda"
    with HostArena(2 * size, pin=on_gpu) as arena, Transfer(clock.device) as transfer:
        slots = [arena.carve(size) for _ in range(2)]
        device = [torch.empty(size, dtype=torch.uint8, device=clock.device) for _ in range(2)]

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


def _memory_rate(clock: Stopwatch) -> float:
    """Bytes a second read and written by a copy within one memory."""
    size = COPY_BYTES[clock.device.type]
    source = torch.ones(size // 4, device=clock.device)
    target = torch.empty_like(source)
    return 2 * size / clock.seconds(lambda: target.copy_(source))


def _works(clock: Stopwatch) -> dict[Work, float]:
    """Parameters a second of the work that is no matrix product, by the engine's own functions."""
    count = ELEMENTS[clock.device.type]
    device = clock.device
    master = torch.randn(count, device=device)
    other = torch.randn(count, device=device)
    state = StateViews(
        torch.empty(count, dtype=torch.bfloat16, device=device),
        torch.empty(count, dtype=torch.int16, device=device),
        torch.zeros(count, device=device),
        torch.zeros(count, device=device),
    )
    split_master(master, state.hi, state.lo)
    factor = torch.ones((), device=device)
    scalars = AdamScalars(
        beta1=0.9, one_minus_beta1=0.1, beta2=0.999, one_minus_beta2=0.001,
        eps=1e-8, decay=1.0, step_size=1e-5, root_scale=1.0,
    )  # fmt: skip
    works: dict[Work, Callable[[], object]] = {
        "join": lambda: join_master(state.hi, state.lo, master),
        "accumulate": lambda: master.add_(other),
        "finish": lambda: round_and_square(other, other),
        "update": lambda: adamw_update(state, other, factor, scalars),
    }
    return {work: count / clock.seconds(call) for work, call in works.items()}
