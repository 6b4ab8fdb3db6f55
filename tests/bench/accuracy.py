"""Does training out of core learn what training in memory learns? Both, on the same batches.

The product trains with its state on NVMe within the given budgets; the reference trains the same
rows with everything in memory: transformers' model, torch's AdamW, and peft's adapters for LoRA.
QLoRA's reference stands on a base that was coded and decoded with the product's NF4 codes. Every
method becomes a JSON line of --results: the evaluation losses before and after, and how far losses
and weights are apart. The exit status is 1 when the last evaluation losses of a method differ by
more than `--tolerance`.
"""

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.contest import add_row, read_rows
from bench.inputs import add_run_arguments, box, run_config, shortest_rows
from bench.long_form_table import METHODS
from bench.real_model import as_checkpoint, decoded_copy
from bench.runs import follow
from headrace.engine import RunEvent, TrainConfig
from reference import (
    ReferenceRun,
    read_checkpoint,
    relative_differences,
    shared_name,
    train_reference,
)


def main() -> int:
    """Run both for every method that is not in the results yet; 0 when all agree."""
    arguments = parse_arguments()
    arguments.work_dir.mkdir(parents=True)
    arguments.model = as_checkpoint(arguments.model, arguments.work_dir / "model")
    config = make_config(arguments)
    done = {row["method"]: row for row in read_rows(arguments.results)}
    chosen = arguments.method or list(METHODS)
    for method in chosen:
        if method not in done:
            done[method] = measure(method, config, arguments)
            add_row(arguments.results, done[method])
        print(line(done[method]), flush=True)
    return 0 if all(done[method]["agrees"] for method in chosen) else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_run_arguments(parser)
    parser.add_argument("--eval", type=Path, required=True, help="JSONL for the evaluation loss")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="repeatable; all")
    parser.add_argument("--lora-lr", type=float, default=1e-4, help="learning rate of adapters")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--shortest", type=int, help="train on so many rows, the shortest; all")
    parser.add_argument("--shortest-eval", type=int, help="likewise, of the evaluation")
    parser.add_argument("--tolerance", type=float, default=0.005, help="of the evaluation loss")
    return parser.parse_args()


def make_config(arguments: argparse.Namespace) -> TrainConfig:
    """The settings that all runs share, over data prepared under the work directory."""
    work = arguments.work_dir
    files = {
        "dataset": shortest_rows(arguments.train, arguments.shortest, work / "train.jsonl"),
        "eval_dataset": shortest_rows(arguments.eval, arguments.shortest_eval, work / "eval.jsonl"),
    }
    return run_config(arguments, files, max_steps=arguments.steps, export_dtype="float32")


def measure(method: str, config: TrainConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both runs of a method, beside each other."""
    work = arguments.work_dir
    if method != "full":
        config = replace(config, learning_rate=arguments.lora_lr)
    config = replace(config, **METHODS[method])
    started = perf_counter()
    product = follow(config, work / method, tell)
    trained = perf_counter()
    base = Path(config.model)
    if config.frozen_format == "nf4":
        base = decoded_copy(base, work / "decoded", "nf4")
    reference = train_reference(
        base, Path(config.dataset), config, eval_dataset_dir=Path(config.eval_dataset or "")
    )
    result = compare(product, reference, work / method / "export")
    return {
        "method": method,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "agrees": result["eval_loss"]["relative_difference"] <= arguments.tolerance,
        "tolerance": arguments.tolerance,
        **result,
        "seconds": {"product": trained - started, "reference": perf_counter() - trained},
        "numerics": config.numerics_key,
        "steps": config.max_steps,
        "budget_bytes": {"device": config.device_bytes, "host": config.host_bytes},
        "files": {"train": arguments.train.name, "eval": arguments.eval.name},
        "rows": {"train": arguments.shortest, "eval": arguments.shortest_eval},
        "box": box(),
    }


def tell(event: RunEvent) -> None:
    """What the product says, as it comes."""
    print(event.message, file=sys.stderr, flush=True)


def compare(events: list[RunEvent], reference: ReferenceRun, export_dir: Path) -> dict[str, Any]:
    """Losses of both runs side by side, and the largest distances between them."""
    steps = [event.data for event in events if event.type == "metrics"]
    evals = [event.data["eval_loss"] for event in events if event.type == "eval"]
    expected = list(reference.eval_losses.values())
    losses = [step["loss"] for step in steps]
    norms = [step["grad_norm"] for step in steps]
    exported = {shared_name(name): one for name, one in read_checkpoint(export_dir).items()}
    apart = relative_differences(exported, reference.state)
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


def line(row: dict[str, Any]) -> str:
    """A method in a line."""
    before, after = (row["eval_loss"][when] for when in ("before", "after"))
    verdict = "agrees" if row["agrees"] else "DIFFERS"
    return (
        f"{row['method']:5} {verdict}: evaluation loss {before['product']:.6f} to "
        f"{after['product']:.6f}, in memory {before['reference']:.6f} to "
        f"{after['reference']:.6f}, {row['eval_loss']['relative_difference']:.1e} apart; a step's "
        f"loss at most {row['train_loss']['largest_difference']:.1e}, a tensor "
        f"{row['weights']['largest_relative_difference']:.1e} ({row['weights']['tensor']})"
    )


if __name__ == "__main__":
    sys.exit(main())
