"""Models with random weights and rows of real text: what the benches of losses train on."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from datasets import write_rows
from headrace.engine import TrainConfig, read_model_spec, shape_spec


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the rows, the model that is made, and where all this lies."""
    parser.add_argument("--rows", type=Path, required=True, help="JSONL of `text` or `messages`")
    parser.add_argument("--work-dir", type=Path, required=True, help="for models, data and store")
    parser.add_argument("--tokenizer", type=Path, help="directory of one; bytes without")
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", default="tiny", help="of the model that is made")
    parser.add_argument("--layers", type=int, help="shorten or lengthen it")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tokens-per-row", type=int, default=96)
    parser.add_argument("--batch-rows", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)


def text_config(
    arguments: argparse.Namespace, model: Path | None, *, held_out: int = 0, **chosen: Any
) -> TrainConfig:
    """Settings at a constant rate over the texts, of which the last `held_out` rows are for
    evaluation; a model is made where none is given. `chosen` go before them."""
    work = arguments.work_dir
    if model is None:
        model = random_model(arguments.shape, arguments.layers, arguments.seed, work / "made")
    ids = token_rows(arguments)
    assert ids.max() < read_model_spec(model).vocab_size, "the tokenizer knows too many tokens"
    write_rows(work / "data", ids[: len(ids) - held_out])
    if held_out:
        write_rows(work / "eval", ids[-held_out:])
    (work / "volume").mkdir()
    values = {
        "model": str(model),
        "dataset": str(work / "data"),
        "eval_dataset": str(work / "eval") if held_out else None,
        "seed": arguments.seed,
        "device": arguments.device,
        "learning_rate": arguments.learning_rate,
        "lr_schedule": "constant",
        "batch_rows": arguments.batch_rows,
        "num_epochs": 10_000,
        "max_steps": arguments.steps,
        "volumes": (str(work / "volume"),),
        "commit_every_steps": arguments.steps,
        **chosen,
    }
    return TrainConfig(**values)


def random_model(shape: str, layers: int | None, seed: int, folder: Path) -> Path:
    """Write a model of a named shape with random weights; the folder."""
    config = dict(shape_spec(shape, layers).config)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    model.save_pretrained(folder)
    return folder


def token_rows(arguments: argparse.Namespace) -> Any:
    """The texts one after another, cut into rows of equal length: int64, (rows, tokens)."""
    texts = list(read_texts(arguments.rows))
    if arguments.tokenizer is None:
        flat = [byte for text in texts for byte in text.encode() + b"\0"]
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.tokenizer)
        end = [tokenizer.eos_token_id]
        flat = [token for text in texts for token in tokenizer(text)["input_ids"] + end]
    length = arguments.tokens_per_row
    count = len(flat) // length
    wanted = arguments.batch_rows
    if count < wanted:
        raise SystemExit(f"{arguments.rows} makes {count} rows of {length} tokens, not {wanted}")
    # The last step of an epoch would have fewer rows.
    count -= count % wanted
    return np.asarray(flat[: count * length], dtype=np.int64).reshape(count, length)


def read_texts(path: Path) -> Iterator[str]:
    """The text of each row; the turns of a conversation follow one another."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "text" in row:
            yield row["text"]
        else:
            yield "\n".join(turn["content"] for turn in row["messages"])
