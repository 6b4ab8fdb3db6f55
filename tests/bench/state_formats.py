"""What a compact state format costs: losses and weights of runs that differ in nothing else.

A small model is made and first trained in the exact format, so that what follows is fine-tuning;
`--model` takes a real one instead. From there every format trains on the same rows, and so does a
control that rounds the matrices' weights to the nearest bf16 after every update. Printed for each:
the loss at the end and on held-out rows, beside those of `exact`; how many of the matrices' weights
moved; and how far the way that they went is from the exact one (`apart`), along it (`along`, 1 is
all of it) and in all (`length`); and how far second moments differ within a block (`spreads`).

    python -m bench.state_formats --rows rows.jsonl --work-dir NEW --json F
    python -m bench.state_formats --rows rows.jsonl --tokenizer DIR --model DIR --device cuda …
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, get_args
from unittest.mock import patch

import torch

from bench.inputs import box, finish
from bench.runs import follow
from bench.texts import add_text_arguments, text_config
from headrace.engine import TrainConfig, read_model_spec
from headrace.engine.config import StateFormat
from headrace.engine.optimizer import adamw_update
from headrace.engine.state import (
    StateViews,
    read_weights,
    state_record,
    state_views,
    write_weights,
)
from headrace.engine.weight_source import open_source
from headrace.storage import HostArena, TensorStore, VolumeConfig

CONTROL = "nearest-bf16"
TAIL = 10  # steps that the loss at the end is the mean of
Weights = dict[str, torch.Tensor]  # of the matrices of each layer, fp32, flat


def main() -> int:
    """Train all, compare, print; 0 when every format ends near `exact`."""
    arguments = parse_arguments()
    arguments.work_dir.mkdir(parents=True)
    config = make_config(arguments)
    if arguments.model is None:
        config = learn_first(config, arguments)
    runs = {}
    for name in [*get_args(StateFormat), CONTROL]:
        runs[name] = train(config, name, arguments.work_dir)
        print(report(name, runs[name], runs["exact"]), file=sys.stderr, flush=True)
    compared = {name: compare(run, runs["exact"]) for name, run in runs.items()}
    formats = [compared[name] for name in get_args(StateFormat)]
    holds = all(abs(one["eval_gap"]) <= arguments.tolerance for one in formats)
    finish(
        {
            "holds": holds,
            "tolerance": arguments.tolerance,
            "formats": compared,
            "spreads": spreads(config),
            "losses": {name: run["losses"] for name, run in runs.items()},
            "rows": arguments.rows.name,
            "shape": arguments.shape,
            "model": arguments.model.name if arguments.model else None,
            "settings": {
                key: value
                for key, value in vars(arguments).items()
                if isinstance(value, int | float)
            },
            "box": {**box(), "device": arguments.device},
        },
        arguments.json,
    )
    return 0 if holds else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_text_arguments(parser)
    parser.set_defaults(layers=4)
    parser.add_argument("--model", type=Path, help="a model's directory, trained as it is")
    parser.add_argument("--first-steps", type=int, default=150, help="in which it learns")
    parser.add_argument("--first-rate", type=float, default=1e-3)
    parser.add_argument("--eval-rows", type=int, default=64, help="held out, the last ones")
    parser.add_argument("--tolerance", type=float, default=0.01, help="of the held-out loss")
    return parser.parse_args()


def make_config(arguments: argparse.Namespace) -> TrainConfig:
    """The settings that all runs share, over rows of real text in the work directory."""
    on_gpu = arguments.device == "cuda"
    return text_config(
        arguments,
        arguments.model,
        held_out=arguments.eval_rows,
        compute_dtype="bfloat16" if on_gpu else "float32",
        export_dtype="bfloat16",
        device_bytes=None if on_gpu else 2**32,
        host_bytes=2**32,
        state_tier="device",  # where the control's update is reached
    )


def learn_first(config: TrainConfig, arguments: argparse.Namespace) -> TrainConfig:
    """Train the model that was made; the settings, from its bf16 export on."""
    first = replace(
        config,
        max_steps=arguments.first_steps,
        learning_rate=arguments.first_rate,
        lr_schedule="cosine",
        commit_every_steps=arguments.first_steps,
    )
    learnt = train(first, "exact", arguments.work_dir, run_name="first")
    print(f"first: loss {learnt['losses'][0]:.4f} to {learnt['end']:.4f}", file=sys.stderr)
    return replace(config, model=str(arguments.work_dir / "first" / "export"))


def train(
    config: TrainConfig, name: str, work_dir: Path, run_name: str | None = None
) -> dict[str, Any]:
    """Losses of a run in a format, or of the control, and its weights before and after."""
    control = name == CONTROL
    values = {**config.to_dict(), "state_format": "exact" if control else name}
    own = TrainConfig.from_dict(values)
    started = perf_counter()
    with rounding_to_nearest(own) if control else patch.dict({}):
        events = follow(own, work_dir / (run_name or name))
    losses = [event.data["loss"] for event in events if event.type == "metrics"]
    evals = [event.data["eval_loss"] for event in events if event.type == "eval"]
    return {
        "losses": losses,
        "end": mean(losses[-TAIL:]),
        "eval": evals[-1],
        "weights": (read_matrices(own, None), read_matrices(own, run_name or name)),
        "seconds": perf_counter() - started,
    }


@contextmanager
def rounding_to_nearest(config: TrainConfig) -> Iterator[None]:
    """After every update, take the matrices' weights for what the nearest bf16 says: the bad way.

    `hi` of the exact format is that bf16; what is left out is the other half.
    """
    layers = read_model_spec(config.model).of_kind("layer")
    matrices = {layer.num_elements: layer.num_matrix_elements for layer in layers}

    def update(state: StateViews, *arguments: Any) -> None:
        adamw_update(state, *arguments)
        state.lo[: matrices.get(state.hi.numel(), 0)].zero_()

    with (
        patch("headrace.engine.step_compute.adamw_update", update),
        patch("headrace.engine.pending.adamw_update", update),
    ):
        yield


def read_matrices(config: TrainConfig, name: str | None) -> Weights:
    """The matrices of every layer as fp32: of a run's last commit, or as they are imported."""
    spec = read_model_spec(config.model)
    records = {one.name: state_record(one, config.state_format) for one in spec.of_kind("layer")}
    found = {}
    with ExitStack() as stack:
        if name is None:
            source = stack.enter_context(open_source(config.model, spec))
        else:
            volumes = [VolumeConfig.parse(text) for text in config.volumes]
            store = stack.enter_context(TensorStore.open(volumes, name=name, read_only=True))
        largest = max(one.padded_bytes for one in records.values())
        slot = stack.enter_context(HostArena(largest)).carve(largest)
        for layout in spec.of_kind("layer"):
            state = state_views(slot, records[layout.name])
            if name is None:
                flat = torch.empty(layout.num_elements)
                source.read_record(layout, flat)
                write_weights(state, flat)
            else:
                store.read_into(layout.name, slot).result()
            found[layout.name] = torch.empty(layout.num_matrix_elements)
            read_weights(state, found[layout.name])
        del state, slot
    return found


def spreads(config: TrainConfig) -> dict[str, float]:
    """How far elements of a block differ, of each kind of matrix: the mean standard deviation of
    the natural logarithm of the root of `exp_avg_sq` after the exact run."""
    found: dict[str, list[float]] = {}
    volumes = [VolumeConfig.parse(text) for text in config.volumes]
    with TensorStore.open(volumes, name="exact", read_only=True) as store:
        for layout in read_model_spec(config.model).of_kind("layer"):
            record = store.records[layout.name]
            with HostArena(record.padded_bytes) as arena:
                slot = arena.carve(record.padded_bytes)
                store.read_into(layout.name, slot).result()
                state = state_views(slot, record)
                assert isinstance(state, StateViews)
                squares = state.exp_avg_sq.clone()
                del state, slot
            for param in layout.params:
                if len(param.shape) > 1:
                    values = squares[param.offset : param.offset + param.num_elements]
                    whole = values[: values.numel() // 256 * 256].clamp_min(1e-38).log() / 2
                    kind = param.name.rsplit(".", 2)[-2]
                    found.setdefault(kind, []).append(float(whole.view(-1, 256).std(1).mean()))
    return {kind: mean(values) for kind, values in found.items()}


def compare(run: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """The run beside the exact one."""
    ways = []
    for one in (run, exact):
        before, after = one["weights"]
        ways.append(torch.cat([after[name] - before[name] for name in before]).double())
    way, wanted = ways
    size = float(wanted.norm())
    return {
        "end": run["end"],
        "end_gap": run["end"] - exact["end"],
        "eval": run["eval"],
        "eval_gap": run["eval"] - exact["eval"],
        "moved": float((way != 0).double().mean()),
        "apart": float((way - wanted).norm()) / size,
        "along": float(way @ wanted) / size**2,
        "length": float(way.norm()) / size,
        "seconds": run["seconds"],
    }


def report(name: str, run: dict[str, Any], exact: dict[str, Any]) -> str:
    """A run in a line."""
    one = compare(run, exact)
    return (
        f"{name:12} loss {one['end']:.5f} ({one['end_gap']:+.5f}), held out {one['eval']:.5f} "
        f"({one['eval_gap']:+.5f}); moved {100 * one['moved']:.1f} %, apart {one['apart']:.3f}, "
        f"along {one['along']:.3f}, length {one['length']:.3f}; {one['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
