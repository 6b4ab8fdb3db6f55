"""Measuring what compute can do here: the engine's own functions, timed for a model's shapes.

Drives are measured by the storage room. What is measured is kept by `rate_file.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from headrace.storage import (
    HostArena,
    NoSpace,
    Transfer,
    VolumeConfig,
    calibrate_volume,
    read_calibration,
)

from .adamw import AdamScalars
from .clip import round_and_square
from .config import TrainConfig
from .flops import head_flops, layer_flops
from .head import LossSums, head_backward, targets_of
from .host_optimizer import measure_cpu_optimizer
from .layer import LayerModule, backward, param_views, trainable
from .model import ModelSpec
from .optimizer import adamw_update
from .rate_file import read_rates, write_rates
from .rates import LayerRate, Rates, ShapeRates, Work, default_rates, shape_key
from .report import Emit, RunEvent
from .state import StateViews, join_master, split_master

MIB = 2**20
# Microbatches that a layer is timed with, while one pass takes no longer than `_LONG_SECONDS`.
TOKENS = {"cpu": (64, 256, 1024), "cuda": (1024, 4096, 16384)}
_LONG_SECONDS = 1.0
_ROW_TOKENS = 1024
_HEAD_TOKENS = {"cpu": 128, "cuda": 2048}
_PART_SECONDS = {False: 0.1, True: 1.0}  # of one figure; the latter in a full calibration
_COPY_BYTES = {"cpu": 32 * MIB, "cuda": 256 * MIB}
_ELEMENTS = {"cpu": 2**22, "cuda": 2**26}


def device_name(device: str) -> str:
    """The GPU's name as its driver gives it; empty on the CPU."""
    return torch.cuda.get_device_name() if device == "cuda" else ""


def calibrate_compute(
    spec: ModelSpec,
    config: TrainConfig,
    volumes: Sequence[VolumeConfig],
    *,
    full: bool = False,
    microbatch_tokens: int | None = None,
) -> Rates:
    """Measure copies, memory, the optimizer and this model's layers; keep it on the first volume.

    Takes some seconds, with `full` some tens. Layers are timed up to `microbatch_tokens`. Shapes
    that were measured before on this hardware are kept.
    """
    name = device_name(config.device)
    known = read_rates(volumes, device_name=name)
    rates = measure_box(config.device, full=full)
    shape = measure_shape(spec, config, full=full, most_tokens=microbatch_tokens)
    shapes = dict(known.shapes) if known else {}
    rates = replace(rates, name=name, shapes={**shapes, shape_key(spec, config): shape})
    write_rates(volumes, rates, device_name=name)
    return rates


def measure_once(
    spec: ModelSpec,
    config: TrainConfig,
    volumes: Sequence[VolumeConfig],
    *,
    microbatch_tokens: int,
    emit: Emit,
) -> None:
    """Measure what is not known yet of the volumes and of this model's layers, and say so.

    5 seconds for each volume, a few for the rest. A volume without room for it goes unmeasured.
    """
    for volume in volumes:
        if read_calibration(volume.path) is None:
            emit(RunEvent(type="phase", message=f"measuring volume {volume.path}"))
            try:
                calibrate_volume(volume)
            except NoSpace as error:
                emit(RunEvent(type="message", level="warn", message=f"not measured: {error}"))
    known = read_rates(volumes, device_name=device_name(config.device))
    if known is None or shape_key(spec, config) not in known.shapes:
        emit(RunEvent(type="phase", message="measuring this machine with the model's layers"))
        calibrate_compute(spec, config, volumes, microbatch_tokens=microbatch_tokens)


def measure_box(device: str, *, full: bool = False) -> Rates:
    """Rates that no model's shape has a part in; the others are those of a usual box."""
    clock = _Clock(torch.device(device), _PART_SECONDS[full])
    up, down, both = _copies(clock)
    on_host = measure_cpu_optimizer(_PART_SECONDS[full], num_elements=_ELEMENTS["cpu"])
    work: dict[Work, float] = {**_works(clock), "host_update": on_host}
    return replace(
        default_rates(device),
        origin="measured",
        measured_at=_now(),
        h2d=up,
        d2h=down,
        both=both,
        host_memory=_memory_rate(_Clock(torch.device("cpu"), _PART_SECONDS[full])),
        device_memory=_memory_rate(clock),
        work=work,
    )


def measure_shape(
    spec: ModelSpec, config: TrainConfig, *, full: bool = False, most_tokens: int | None = None
) -> ShapeRates:
    """Operations a second of a layer, forward and backward, and of the head."""
    device = torch.device(config.device)
    clock = _Clock(device, _PART_SECONDS[full])
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    module = LayerModule(spec, device=device, dtype=dtype, compile=config.compile)
    layers: list[LayerRate] = []
    for tokens in TOKENS[device.type]:
        if layers and most_tokens is not None and tokens > 2 * most_tokens:
            break
        rate, seconds = _time_layer(spec, module, clock, dtype, tokens)
        layers.append(rate)
        if seconds > _LONG_SECONDS:
            break
    return ShapeRates(
        measured_at=_now(),
        layers=tuple(layers),
        head_flops=_time_head(spec, config, module, clock, dtype),
    )


def _time_layer(
    spec: ModelSpec, module: LayerModule, clock: "_Clock", dtype: torch.dtype, tokens: int
) -> tuple[LayerRate, float]:
    """The first layer on random weights; its rates, and seconds of both passes."""
    layout = spec.of_kind("layer")[0]
    row = min(tokens, _ROW_TOKENS, spec.max_positions)
    rows = max(1, tokens // row)
    flat = torch.empty(layout.num_elements, dtype=dtype, device=clock.device).normal_(0, 0.02)
    weights = trainable(param_views(flat, layout))
    hidden = torch.randn(rows, row, spec.hidden_size, dtype=dtype, device=clock.device)
    grad = torch.randn_like(hidden)
    positions = module.positions(row)

    def forward() -> Tensor:
        return module.forward_only(layout, weights, hidden, positions)

    def both() -> None:
        inputs = hidden.detach().requires_grad_()
        with torch.enable_grad():
            output = module.forward(layout, weights, inputs, positions)
        backward(output, inputs, weights, grad)

    once, twice = clock.seconds(forward), clock.seconds(both)
    flops = layer_flops(spec, layout, tokens=rows * row, row_tokens=row)
    rate = LayerRate(
        tokens=rows * row,
        forward_flops=flops / once,
        backward_flops=2 * flops / max(twice - once, 0.5 * once),
    )
    return rate, once + twice


def _time_head(
    spec: ModelSpec, config: TrainConfig, module: LayerModule, clock: "_Clock", dtype: torch.dtype
) -> float:
    tokens = min(_HEAD_TOKENS[clock.device.type], config.loss_chunk_tokens)
    device, shape = clock.device, (spec.vocab_size, spec.hidden_size)
    table = torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.02)
    table_grad = torch.zeros(shape, device=device)
    hidden = torch.randn(1, tokens + 1, spec.hidden_size, dtype=dtype, device=device)
    positions, wanted = targets_of(torch.arange(tokens + 1)[None] % spec.vocab_size)
    norm = torch.ones(spec.hidden_size, dtype=dtype, device=device)

    def head() -> None:
        head_backward(
            module,
            hidden,
            (positions.to(device), wanted.to(device)),
            norm_weight=norm,
            table=table,
            norm_grad=torch.zeros(spec.hidden_size, device=device),
            table_grad=table_grad,
            loss_scale=1.0,
            chunk_tokens=tokens,
            sums=LossSums.zero(device),
        )

    return head_flops(spec, trained_tokens=tokens) / clock.seconds(head)


def _copies(clock: "_Clock") -> tuple[float, float, float | None]:
    """Bytes a second up, down, and each way at once (None where one thread makes all copies)."""
    size = _COPY_BYTES[clock.device.type]
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


def _memory_rate(clock: "_Clock") -> float:
    """Bytes a second read and written by a copy within one memory."""
    size = _COPY_BYTES[clock.device.type]
    source = torch.ones(size // 4, device=clock.device)
    target = torch.empty_like(source)
    return 2 * size / clock.seconds(lambda: target.copy_(source))


def _works(clock: "_Clock") -> dict[Work, float]:
    """Parameters a second of the work that is no matrix product, by the engine's own functions."""
    count = _ELEMENTS[clock.device.type]
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


class _Clock:
    """Times calls on a device: after one that warms up, the median of those there is time for."""

    def __init__(self, device: torch.device, part_seconds: float) -> None:
        self.device = device
        self._part_seconds = part_seconds

    def seconds(self, call: Callable[[], object]) -> float:
        """Seconds of one call, at least three of which are made."""
        self._once(call)
        times: list[float] = []
        while len(times) < 3 or sum(times) < self._part_seconds:
            times.append(self._once(call))
        return median(times)

    def _once(self, call: Callable[[], object]) -> float:
        self._wait()
        started = perf_counter()
        call()
        self._wait()
        return perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
