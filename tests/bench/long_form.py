"""Two epochs over grade-school sums: full, LoRA and QLoRA beside transformers and peft in memory.

Each contender trains on the same rows in the same order from the same adapters, then answers sums
that it has not seen, greedily, as a transformers model in the compute dtype: the product's export
(merged), and the peer's weights, merged in the same way into the original ones. QLoRA's peer is
peft's LoRA over a base that was coded and decoded with the product's NF4 codes, in the compute
dtype. Every contender becomes a JSON line of --results; one that is there already is left alone.

    python -m bench.long_form --model M.gguf --train T.jsonl --eval E.jsonl --results long.jsonl
    python -m bench.long_form --results long.jsonl --table

The exit status is 1 when the evaluation loss of a run is more than `--tolerance` from its peer's.
"""

import argparse
import gc
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from bench.contest import Clock, Row, add_row, read_rows, tell
from bench.in_memory import load, mean_loss, put_in, train_in_memory
from bench.inputs import box, prepare_inputs
from bench.long_form_table import METHODS, UNTRAINED, WHO, holds, pairs, table, told
from bench.real_model import as_checkpoint, decoded_copy
from bench.runs import follow
from bench.sums import answer, read_sums, score
from headrace.engine import RunEvent, TrainConfig, load_tokenizer

TOLD_EVERY = 20  # steps
GIB = 2**30


def main() -> int:
    """Train and judge what is not in the results yet, then print the table."""
    arguments = parse_arguments()
    if not arguments.table:
        with tempfile.TemporaryDirectory(dir=arguments.work_dir, prefix="long-form-") as folder:
            run_contest(arguments, Path(folder))
    found = {row["name"]: row["result"] for row in read_rows(arguments.results)}
    print(table(found, arguments.tolerance))
    return 0 if all(holds(one, arguments.tolerance) for one in pairs(found)) else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--table", action="store_true", help="print the results and stop")
    parser.add_argument("--model", type=Path, help="a .gguf file or a model's directory")
    parser.add_argument("--train", type=Path, help="JSONL of chat messages")
    parser.add_argument("--eval", type=Path, help="likewise; answers end with #### and a number")
    parser.add_argument("--work-dir", type=Path, help="for all files; the temporary folder")
    parser.add_argument(
        "--only", action="append", metavar="METHOD-SEED-WHO", help="repeatable; a pattern with *"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing beyond")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--compute-dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--batch-rows", type=int, default=16)
    parser.add_argument("--microbatch-rows", type=int, default=16)
    parser.add_argument("--full-rate", type=float, default=1e-4, help="learning rate of full")
    parser.add_argument("--lora-rate", type=float, default=5e-4, help="of the others")
    parser.add_argument("--max-seq-len", type=int, default=1024)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--answer-rows", type=int, default=100, help="sums answered at once")
    parser.add_argument("--tolerance", type=float, default=0.01, help="of the evaluation loss")
    arguments = parser.parse_args()
    if not arguments.table and None in (arguments.model, arguments.train, arguments.eval):
        parser.error("--model, --train and --eval are wanted, or --table")
    return arguments


def run_contest(arguments: argparse.Namespace, work: Path) -> None:
    """Train and judge every contender that is asked for and not in the results yet."""
    clock = Clock(arguments.seconds)
    done = {row["name"]: row["wall_seconds"] for row in read_rows(arguments.results)}
    names = [name for name in contenders(arguments.seeds) if wanted(name, arguments.only)]
    if not set(names) - set(done):
        return
    contest = Contest(arguments, work)
    for name in names:
        longest = max(done.values(), default=0.0)
        if name in done:
            continue
        if clock.left < longest:
            print(f"{name}: left for the next run, {clock.left:.0f} s are too few", flush=True)
            continue
        print(f"{name}: {clock.left:.0f} s left", file=sys.stderr, flush=True)
        started = perf_counter()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        row: Row = {"name": name, "date": date, "result": contest.run(name)}
        row["wall_seconds"] = done[name] = round(perf_counter() - started, 1)
        add_row(arguments.results, row)
        print(f"{name}: {told(row['result'])}; {row['wall_seconds']} s in all", flush=True)


def contenders(seeds: int) -> Iterator[str]:
    """Names, those of one comparison one after the other, whole seeds first."""
    yield UNTRAINED
    for seed in range(seeds):
        for method in METHODS:
            yield from (f"{method}-{seed}-{who}" for who in WHO)


def wanted(name: str, patterns: list[str] | None) -> bool:
    """Whether a contender was asked for; all were where nothing was said."""
    return patterns is None or any(fnmatchcase(name, one) for one in patterns)


class Contest:
    """The model and the data, made ready once, and what each contender does with them."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self._arguments = arguments
        self._work = work
        self._model = as_checkpoint(arguments.model, work / "model")
        self._decoded = decoded_copy(self._model, work / "decoded", "nf4")
        self._paths: dict[str, Any] = prepare_inputs(
            self._model,
            work,
            {"dataset": arguments.train, "eval_dataset": arguments.eval},
            max_seq_len=arguments.max_seq_len,
        )
        self._tokenizer = load_tokenizer(self._model)
        self._sums = read_sums(arguments.eval)
        self._dtype: torch.dtype = getattr(torch, arguments.compute_dtype)
        tell(f"model and data are ready; {len(self._sums)} sums to answer")

    def run(self, name: str) -> dict[str, Any]:
        """Train, if there is anything to train, and judge."""
        device = self._arguments.device
        if name == UNTRAINED:
            return {**self._judge(load(self._model, self._dtype, device)), "box": self._box()}
        method, seed, who = name.split("-")
        config = self._config(method, int(seed))
        train = self._train_product if who == "headrace" else self._train_peer
        started = perf_counter()
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            model, losses, steps_seconds = train(config, Path(folder))
            trained = perf_counter() - started
            result = self._judge(model)
        del model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        return {
            **result,
            "train_seconds": trained,
            "steps_seconds": steps_seconds,
            "losses": losses,
            "numerics": config.numerics_key,
            "box": self._box(),
        }

    def _config(self, method: str, seed: int) -> TrainConfig:
        given = self._arguments
        return TrainConfig(
            **self._paths,
            **METHODS[method],
            seed=seed,
            device=given.device,
            compute_dtype=given.compute_dtype,
            learning_rate=given.full_rate if method == "full" else given.lora_rate,
            lr_schedule="cosine",
            warmup_ratio=0.05,
            batch_rows=given.batch_rows,
            microbatch_rows=given.microbatch_rows,
            num_epochs=given.epochs,
            loss_chunk_tokens=4096 if given.device == "cuda" else 256,
            deterministic=False,
            export_dtype=given.compute_dtype,
            lora_export="merged",
            device_bytes=32 * GIB if given.device == "cuda" else 4 * GIB,
            host_bytes=8 * GIB,
            commit_every_steps=10**9,
        )

    def _train_product(self, config: TrainConfig, folder: Path) -> tuple[Any, list[float], float]:
        def told(event: RunEvent) -> None:
            if event.type == "metrics" and event.data["step"] % TOLD_EVERY == 0:
                tell(f"step {event.data['step']}: loss {event.data['loss']:.4f}")

        (folder / "volume").mkdir()
        here = replace(config, volumes=(str(folder / "volume"),))
        events = follow(here, folder / "run", told)
        steps = [event.data for event in events if event.type == "metrics"]
        model = load(folder / "run" / "export", self._dtype, config.device)
        seconds = sum(step["step_seconds"] for step in steps)
        return model, [step["loss"] for step in steps], seconds

    def _train_peer(self, config: TrainConfig, folder: Path) -> tuple[Any, list[float], float]:
        base = self._model if config.frozen_format == "auto" else self._decoded
        losses: list[float] = []
        started: list[float] = []

        def told(step: int, loss: float) -> None:
            started.append(perf_counter())
            losses.append(loss)
            if step % TOLD_EVERY == 0:
                tell(f"step {step}: loss {loss:.4f}")

        trained = train_in_memory(config, base, told)
        model = load(self._model, torch.float32, "cpu")
        put_in(model, config, trained)
        seconds = (started[-1] - started[0]) * len(started) / max(1, len(started) - 1)
        return model.to(self._dtype).to(config.device), losses, seconds

    def _judge(self, model: Any) -> dict[str, Any]:
        given = self._arguments
        model.eval()
        started = perf_counter()
        loss = mean_loss(model, Path(self._paths["eval_dataset"]), given.batch_rows)
        texts = answer(
            model,
            self._tokenizer,
            self._sums,
            max_new_tokens=given.max_new_tokens,
            batch_rows=given.answer_rows,
        )
        return {
            "eval_loss": loss,
            **score(self._sums, texts),
            "judge_seconds": perf_counter() - started,
            "answers": texts[:3],
        }

    def _box(self) -> dict[str, Any]:
        cuda = self._arguments.device == "cuda"
        return {**box(), "gpu": torch.cuda.get_device_name() if cuda else None}


if __name__ == "__main__":
    sys.exit(main())
