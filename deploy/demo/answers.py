"""Ask a model questions with plain transformers, in a process that imports nothing of Headrace.

    python -m deploy.demo.answers --model DIR --questions FILE

FILE holds a JSON list of chat `messages`; the answers come back as a JSON list on standard output.
DIR is a Hugging Face directory, or one that holds a single GGUF file.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

MAX_NEW_TOKENS = 24


def load(model_dir: Path) -> tuple[Any, Any]:
    """Tokenizer and model in float32 on the CPU, by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    source: dict[str, Any] = {"local_files_only": True}
    if not (model_dir / "config.json").exists():
        source["gguf_file"] = next(model_dir.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left", **source)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, **source)
    return tokenizer, model.eval()


def ask(tokenizer: Any, model: Any, conversations: list[list[dict[str, str]]]) -> list[str]:
    """Greedy answers, at most MAX_NEW_TOKENS tokens each, all in one batch padded on the left."""
    prompts = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for messages in conversations
    ]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    output = model.generate(
        **batch,
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    new = output[:, batch["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]


def main() -> None:
    """Read the arguments, print the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer, model = load(arguments.model)
    conversations = json.loads(arguments.questions.read_text())
    json.dump(ask(tokenizer, model, conversations), sys.stdout)


if __name__ == "__main__":
    main()
