"""Does training out of core learn what training in memory learns? Both, on the same batches.

The product trains with its state on NVMe within the given budgets; the reference trains plain
PyTorch with everything in memory. Printed are the evaluation losses before and after, and how far
losses and weights are apart. The exit status is 1 when the last evaluation losses differ by more
than `--tolerance`.
"""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.inputs import add_run_arguments, box, finish, prepare_inputs, run_settings
from headrace.engine import RunEvent, TrainConfig, run_job
from reference import ReferenceRun, read_checkpoint, relative_differences, train_reference


def main() -> int:
    """Run both, compare, print; 0 when they agree within the tolerance."""
    arguments = parse_arguments()
    arguments.work_dir.mkdir(parents=True)
    config = make_config(arguments)
    started = time.perf_counter()
    product = train_product(config, arguments.work_dir / "run")
    product_seconds = time.perf_counter() - started
    reference = train_reference(
        arguments.model,
        Path(config.dataset),
        config,
        eval_dataset_dir=Path(config.eval_dataset or ""),
    )
    seconds = {
        "product": product_seconds,
        "reference": time.perf_counter() - started - product_seconds,
    }
    result = compare(product, reference, arguments.work_dir / "run" / "export")
    agrees = result["eval_loss"]["relative_difference"] <= arguments.tolerance
    finish(
        {
            "agrees": agrees,
            "tolerance": arguments.tolerance,
            **result,
            "seconds": seconds,
            "config": asdict(config),
            "files": {"train": str(arguments.train), "eval": str(arguments.eval)},
            "box": box(),
        },
        arguments.json,
    )
    return 0 if agrees else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_arguments(parser)
    parser.add_argument("--eval", type=Path, required=True, help="JSONL for the evaluation loss")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tolerance", type=float, default=0.005, help="of the evaluation loss")
    return parser.parse_args()


def make_config(arguments: argparse.Namespace) -> TrainConfig:
    """The settings of both runs, over data prepared under the work directory."""
    paths = prepare_inputs(
        arguments.model,
        arguments.work_dir,
        {"dataset": arguments.train, "eval_dataset": arguments.eval},
        max_seq_len=arguments.max_seq_len,
    )
    settings = run_settings(arguments)
    return TrainConfig(
        **{**paths, **settings, "max_steps": arguments.steps, "export_dtype": "float32"}
    )


def train_product(config: TrainConfig, run_dir: Path) -> list[RunEvent]:
    """Train out of core in this process; the events of the run."""
    events: list[RunEvent] = []

    def emit(event: RunEvent) -> None:
        events.append(event)
        print(event.message, file=sys.stderr)

    run_job(config, run_dir=run_dir, name="accuracy", emit=emit, poll=lambda: None)
    return events


def compare(events: list[RunEvent], reference: ReferenceRun, export_dir: Path) -> dict[str, Any]:
    """Losses of both runs side by side, and the largest distances between them."""
    steps = [event.data for event in events if event.type == "metrics"]
    evals = [event.data["eval_loss"] for event in events if event.type == "eval"]
    expected = list(reference.eval_losses.values())
    losses = [step["loss"] for step in steps]
    norms = [step["grad_norm"] for step in steps]
    apart = relative_differences(read_checkpoint(export_dir), reference.state)
    worst = max(apart, key=lambda name: apart[name])
    return {
        "eval_loss": {
            "before": {"product": evals[0], "reference": expected[0]},
            "after": {"product": evals[-1], "reference": expected[-1]},
            "relative_difference": abs(evals[-1] - expected[-1]) / expected[-1],
        },
        "train_loss": {
            "product": losses,
            "reference": reference.losses,
            "largest_difference": max(
                abs(a - b) for a, b in zip(losses, reference.losses, strict=True)
            ),
        },
        "grad_norm": {
            "product": norms,
            "reference": reference.grad_norms,
            "largest_relative_difference": max(
                abs(a / b - 1) for a, b in zip(norms, reference.grad_norms, strict=True)
            ),
        },
        "weights": {"largest_relative_difference": apart[worst], "tensor": worst},
        "payload_bytes_of_last_step": {
            link: traffic["payload_bytes"] for link, traffic in steps[-1]["links"].items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
