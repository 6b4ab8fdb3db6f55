"""Measuring a model's own layers and head: operations a second at several microbatch sizes."""

import torch
from torch import Tensor

from .config import TrainConfig
from .flops import backward_flops, head_flops, layer_flops
from .head import LossSums, head_backward, targets_of
from .layer import LayerModule, Weights, param_views
from .layer_graph import backward, forward_graph
from .measure_box import round_clock
from .measure_work import measure_work
from .model import ModelSpec
from .rates import LayerRate, ShapeRates
from .stopwatch import Stopwatch, now

# Microbatches that a layer is timed with, while one pass takes no longer than `_LONG_SECONDS`.
TOKENS = {"cpu": (64, 256, 1024), "cuda": (1024, 4096, 16384)}
_LONG_SECONDS = 1.0
_ROW_TOKENS = 1024
_HEAD_TOKENS = {"cpu": 128, "cuda": 2048}


def measure_shape(
    spec: ModelSpec, config: TrainConfig, *, full: bool = False, most_tokens: int | None = None
) -> ShapeRates:
    """Operations a second of a layer, forward and backward, and of the head, of one round."""
    device = torch.device(config.device)
    clock = round_clock(config.device, full=full)
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
        measured_at=now(),
        layers=tuple(layers),
        head_flops=_time_head(spec, config, module, clock, dtype),
        work=measure_work(spec, config, clock),
    )


def _time_layer(
    spec: ModelSpec, module: LayerModule, clock: Stopwatch, dtype: torch.dtype, tokens: int
) -> tuple[LayerRate, float]:
    """The first layer on random weights; its rates, and seconds of both passes."""
    layout = spec.of_kind("layer")[0]
    row = min(tokens, _ROW_TOKENS, spec.max_positions)
    rows = max(1, tokens // row)
    weights: Weights = {}
    for record in (layout, *filter(None, [spec.beside.get(layout.name)])):
        flat = torch.empty(record.num_elements, dtype=dtype, device=clock.device).normal_(0, 0.02)
        weights = {**weights, **param_views(flat, record)}
    weights = module.leaves(layout, weights)
    hidden = torch.randn(rows, row, spec.hidden_size, dtype=dtype, device=clock.device)
    grad = torch.randn_like(hidden)
    positions = module.positions(row, torch.full((rows,), row), packed=False)

    def forward() -> Tensor:
        return module.forward_only(layout, weights, hidden, positions)

    def both() -> None:
        backward(forward_graph(module, layout, weights, hidden, positions), weights, grad)

    once, twice = clock.seconds(forward), clock.seconds(both)
    flops = layer_flops(spec, layout, tokens=rows * row, row_tokens=row)
    backward_part = backward_flops(spec, layout, tokens=rows * row, row_tokens=row)
    rate = LayerRate(
        tokens=rows * row,
        forward_flops=flops / once,
        backward_flops=backward_part / max(twice - once, 0.5 * once),
    )
    return rate, once + twice


def _time_head(
    spec: ModelSpec, config: TrainConfig, module: LayerModule, clock: Stopwatch, dtype: torch.dtype
) -> float:
    tokens = min(_HEAD_TOKENS[clock.device.type], config.loss_chunk_tokens)
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

    return head_flops(spec, trained_tokens=tokens) / clock.seconds(head)
