"""Measuring a model's own layers and head: operations a second at several microbatch sizes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .config import TrainConfig
from .flops import backward_flops, head_flops, layer_flops
from .head import LossSums, head_backward, targets_of
from .heap import trim_heap
from .layer import LayerModule, Weights
from .layer_graph import LayerGraph, backward, forward_graph
from .measure_box import LAYER_PARTS, round_clock
from .measure_memory import MeasuringSizes
from .measure_surroundings import Surroundings
from .measure_work import least_update, measure_work
from .model import ModelSpec
from .rates import LayerRate, ShapeRates, Work
from .stopwatch import Stopwatch, now

# Microbatches that a layer is timed with, while one pass takes no longer than `_LONG_SECONDS`.
TOKENS = {"cpu": (64, 256, 1024), "cuda": (1024, 4096, 16384)}
_LONG_SECONDS = 1.0
_ROW_TOKENS = 1024
_HEAD_TOKENS = {"cpu": 128, "cuda": 2048}  # a processor takes more where they are quickly done
_HEAD_OPERATIONS = 4e10
_VISITS = 5


def measure_shape(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    full: bool = False,
    most_tokens: int | None = None,
    most_bytes: int | None = None,
    row_tokens: int | None = None,
    sizes: Sequence[int] | None = None,
) -> ShapeRates:
    """Operations a second of a layer, forward and backward, and of the head, of one round.

    Microbatches have these `sizes` in tokens, ascending; by default those of `TOKENS` up to twice
    `most_tokens`, the run's own, which on a CPU is timed too where it lies between two of them. The
    head has no more than `most_tokens` either, and a layer no size behind one that takes long.
    On a CPU a layer's rows have `row_tokens` tokens, where that is given: attention reaches fewer
    operations a second than the products, and has more of them in long rows.
    On a CPU it takes no more than `most_bytes` of memory, where that is given: fewer layers lie
    about then, and sizes that do not fit are left out.
    """
    clock = round_clock(config.device, full=full)
    room = MeasuringSizes(spec, config, most_bytes)
    long = round_clock(config.device, full=full, parts=LAYER_PARTS[config.device])
    layers, head_flops, visit_seconds, accumulate = _time_passes(
        spec, config, long, room, most_tokens, row_tokens, sizes or _sizes(config, most_tokens)
    )
    return ShapeRates(
        measured_at=now(),
        layers=layers,
        head_flops=head_flops,
        visit_seconds=visit_seconds,
        work={**measure_work(spec, config, clock, room), **accumulate},
    )


def _time_passes(
    spec: ModelSpec,
    config: TrainConfig,
    clock: Stopwatch,
    room: MeasuringSizes,
    most_tokens: int | None,
    row_tokens: int | None,
    sizes: Sequence[int],
) -> tuple[tuple[LayerRate, ...], float, float, dict[Work, float]]:
    """Layers at several sizes of a microbatch, the head, what a visit takes beside them, and the
    summing of gradients behind them; what that took is free again."""
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    module = LayerModule(spec, device=clock.device, dtype=dtype, compile=config.compile)
    head_tokens = _head_tokens(spec, config, most_tokens)
    copies = room.num_copies(sizes[0], head_tokens)
    surroundings = Surroundings(spec, module, clock, dtype, copies)
    layers: list[LayerRate] = []
    for tokens in sizes:
        if layers and not room.fits(copies, tokens):
            break
        kept = room.num_kept(copies, tokens)
        row = min(tokens, _ROW_TOKENS, spec.max_positions)
        if row_tokens is not None and config.device == "cpu":
            row = min(row, row_tokens)
        size = max(1, tokens // row), row
        rate, seconds = _time_layer(spec, module, surroundings, clock, dtype, size, kept)
        layers.append(rate)
        if seconds > _LONG_SECONDS:
            break
    head = _time_head(spec, config, module, surroundings, clock, dtype, head_tokens)
    visit = 0.0 if config.device == "cuda" else _time_visit(spec, module, surroundings, dtype)
    return tuple(layers), head, visit, surroundings.accumulate()


def _sizes(config: TrainConfig, most_tokens: int | None) -> list[int]:
    """Tokens of the microbatches to be timed, ascending. On a CPU `most_tokens` is one of them, if
    it lies between two: from some size on a layer's pieces take fresh pages, so that there a rate
    is a guess."""
    sizes = TOKENS[config.device]
    if most_tokens is None:
        return list(sizes)
    own = {most_tokens} if config.device == "cpu" and sizes[0] < most_tokens < sizes[-1] else set()
    return sorted({sizes[0], *own, *(one for one in sizes if one <= 2 * most_tokens)})


def _time_layer(
    spec: ModelSpec,
    module: LayerModule,
    surroundings: Surroundings,
    clock: Stopwatch,
    dtype: torch.dtype,
    size: tuple[int, int],
    num_kept: int,
) -> tuple[LayerRate, float]:
    """The first layer on random weights, with a microbatch of a `size` in rows and tokens of each;
    its rates, and seconds of both passes."""
    layout = spec.of_kind("layer")[0]
    rows, row = size
    hidden = torch.randn(rows, row, spec.hidden_size, dtype=dtype, device=clock.device)
    grad = torch.randn_like(hidden)
    positions = module.positions(row, torch.full((rows,), row), packed=False)

    def forward() -> None:
        weights = surroundings.next_weights()
        surroundings.keep(module.forward_only(layout, weights, hidden, positions))

    def both() -> None:
        weights = surroundings.next_weights()
        graph = forward_graph(module, layout, weights, hidden, positions)
        of_hidden, grads = backward(graph, weights, grad)
        surroundings.keep(of_hidden, grads)

    between = surroundings.between
    once, twice = clock.seconds(forward, between=between), clock.seconds(both, between=between)
    flops = layer_flops(spec, layout, tokens=rows * row, row_tokens=row)
    backward_part = backward_flops(spec, layout, tokens=rows * row, row_tokens=row)
    rate = LayerRate(
        tokens=rows * row,
        forward_flops=flops / once,
        backward_flops=backward_part / max(twice - once, 0.5 * once),
    )
    if clock.device.type == "cuda":  # a GPU has no caches of that size, and its memory is no news
        return rate, once + twice

    def graph(weights: Weights) -> LayerGraph:
        return forward_graph(module, layout, weights, hidden, positions)

    there, back = _time_kept(surroundings, clock, graph, grad, num_kept)
    kept = replace(rate, kept_forward_flops=flops / there, kept_backward_flops=backward_part / back)
    return kept, once + twice


def _time_kept(
    surroundings: Surroundings,
    clock: Stopwatch,
    forward: Callable[[Weights], LayerGraph],
    grad: Tensor,
    num_layers: int,
) -> tuple[float, float]:
    """Seconds of a layer's forward and of its backward pass where the activations are kept.

    In the order of a step: forward over `num_layers`, then backward, last layer first.
    """
    there: list[float] = []
    back: list[float] = []
    passed: list[tuple[Weights, LayerGraph]] = []

    def go() -> None:
        weights = surroundings.next_weights()
        passed.append((weights, forward(weights)))

    def come_back() -> None:
        weights, graph = passed.pop()
        surroundings.keep(*backward(graph, weights, grad))

    while not (clock.is_enough(there) and clock.is_enough(back)):
        for times, call in ((there, go), (back, come_back)):
            for _ in range(num_layers):
                surroundings.between()
                times.append(clock.once(call))
    return clock.figure(there), clock.figure(back)


def _time_visit(
    spec: ModelSpec, module: LayerModule, surroundings: Surroundings, dtype: torch.dtype
) -> float:
    """Seconds of the smallest update right behind a layer, which has filled the caches."""
    hidden = torch.randn(1, TOKENS["cpu"][0], spec.hidden_size, dtype=dtype)
    positions = module.positions(hidden.shape[1], torch.tensor([hidden.shape[1]]), packed=False)
    layout, weights = spec.of_kind("layer")[0], surroundings.next_weights()

    def between() -> None:
        surroundings.keep(module.forward_only(layout, weights, hidden, positions))
        surroundings.between()

    clock = Stopwatch(torch.device("cpu"), 0.0, least=_VISITS)
    return clock.seconds(least_update(), between=between)


def _head_tokens(spec: ModelSpec, config: TrainConfig, most_tokens: int | None) -> int:
    """Tokens that the head is timed with: as many as a chunk of the run, where that is quick."""
    least = min(_HEAD_TOKENS[config.device], config.loss_chunk_tokens)
    if config.device == "cuda":
        return least
    affordable = int(_HEAD_OPERATIONS / head_flops(spec, trained_tokens=1))
    return max(least, min(config.loss_chunk_tokens, most_tokens or least, affordable))


def _time_head(
    spec: ModelSpec,
    config: TrainConfig,
    module: LayerModule,
    surroundings: Surroundings,
    clock: Stopwatch,
    dtype: torch.dtype,
    tokens: int,
) -> float:
    device, shape = clock.device, (spec.vocab_size, spec.hidden_size)
    table = torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.02)
    trained = spec.trains_table
    table_grad = torch.zeros(shape, device=device) if trained else None
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
            norm_grad=torch.zeros(spec.hidden_size, device=device) if trained else None,
            table_grad=table_grad,
            loss_scale=1.0,
            chunk_tokens=tokens,
            sums=LossSums.zero(device),
        )

    def between() -> None:
        surroundings.between()
        if device.type == "cpu":  # in a step, every chunk's logits take fresh pages
            trim_heap()

    return head_flops(spec, trained_tokens=tokens) / clock.seconds(head, between=between)
