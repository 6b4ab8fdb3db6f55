"""What the benchmarks share: a model and JSONL files made ready to train, and the box described."""

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

from headrace.engine import (
    TrainConfig,
    load_tokenizer,
    prepare_dataset,
    prepare_model,
    read_model_spec,
)

MIB = 2**20
ALLOCATOR_SETTINGS = "MALLOC_"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that decide a run's result and its budgets."""
    parser.add_argument("--model", type=Path, required=True, help="a .gguf's or HF directory")
    parser.add_argument("--train", type=Path, required=True, help="JSONL of chat messages")
    parser.add_argument("--work-dir", type=Path, required=True, help="for data, store and export")
    parser.add_argument("--max-seq-len", type=int, default=1024, help="tokens; longer rows fail")
    parser.add_argument("--batch-rows", type=int, default=4)
    parser.add_argument("--microbatch-rows", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device-mib", type=int, default=650, help="budget of the device tier")
    parser.add_argument("--host-mib", type=int, default=494, help="budget of the host tier")


def prepare_inputs(
    model: Path, work_dir: Path, files: dict[str, Path], *, max_seq_len: int
) -> dict[str, Any]:
    """Make model and data ready under `work_dir`; TrainConfig's path settings by name.

    `files` maps TrainConfig's data set settings (`dataset`, `eval_dataset`) to JSONL files.
    """
    assets = prepare_model(model, work_dir / "models")
    tokenizer = load_tokenizer(assets)
    vocab_size = read_model_spec(model).vocab_size
    for setting, file in files.items():
        prepare_dataset(
            [file],
            tokenizer=tokenizer,
            out_dir=work_dir / setting,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
        )
    volume = work_dir / "volume"
    volume.mkdir(exist_ok=True)
    paths = {setting: str(work_dir / setting) for setting in files}
    return {**paths, "model": str(model), "assets": str(assets)}


def run_config(arguments: argparse.Namespace, files: dict[str, Path], **chosen: Any) -> TrainConfig:
    """The settings of `add_run_arguments` over files that are prepared under the work directory:
    fp32, exact, the state on the volume; `chosen` go before them."""
    paths = prepare_inputs(
        arguments.model, arguments.work_dir, files, max_seq_len=arguments.max_seq_len
    )
    values = {
        **paths,
        "seed": arguments.seed,
        "learning_rate": arguments.lr,
        "batch_rows": arguments.batch_rows,
        "microbatch_rows": arguments.microbatch_rows,
        "num_epochs": 1000,  # --steps is the only limit
        "device_bytes": arguments.device_mib * MIB,
        "host_bytes": arguments.host_mib * MIB,
        "volumes": (str(arguments.work_dir / "volume"),),
        "state_tier": "nvme",
        **chosen,
    }
    return TrainConfig(**values)


def shortest_rows(file: Path, count: int | None, target: Path) -> Path:
    """A JSONL file of the `count` shortest lines of another, in its order; all when None."""
    if count is None:
        return file
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = sorted(sorted(range(len(lines)), key=lambda i: len(lines[i]))[:count])
    target.write_text("".join(lines[i] for i in chosen), encoding="utf-8")
    return target


def box() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    return {
        "processor": platform.machine(),
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "allocator": {k: v for k, v in os.environ.items() if k.startswith(ALLOCATOR_SETTINGS)},
    }


def finish(result: dict[str, Any], json_path: Path | None) -> None:
    """Print a result as JSON and write it to `json_path` when one is given."""
    text = json.dumps(result, indent=2)
    print(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
