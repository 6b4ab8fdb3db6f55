"""Grade-school sums answered by a model: greedy generation in batches, and who is right."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

MARK = "####"  # GSM8K's answers end with it and the number
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A question, as chat messages, and the number that is its answer."""

    prompt: list[dict[str, str]]
    answer: float


def read_sums(path: Path) -> list[Sum]:
    """The rows of a JSONL file of chat `messages` whose last turn ends with `####` and a number."""
    found = []
    for line in path.read_text().splitlines():
        messages = json.loads(line)["messages"]
        answer = marked_number(messages[-1]["content"])
        assert answer is not None, f"{path}: a row without {MARK}"
        found.append(Sum(prompt=messages[:-1], answer=answer))
    return found


def marked_number(text: str) -> float | None:
    """The number behind the mark; None without one."""
    _, mark, rest = text.partition(MARK)
    found = _NUMBER.search(rest) if mark else None
    return _value(found.group()) if found else None


def last_number(text: str) -> float | None:
    """The last number of a text, marked or not."""
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def _value(digits: str) -> float:
    return float(digits.replace(",", ""))


def score(sums: Sequence[Sum], texts: Sequence[str]) -> dict[str, float]:
    """Shares of right answers: `exact` behind the mark, `last` by the last number in the text."""
    pairs = list(zip(sums, texts, strict=True))
    return {
        "exact": sum(marked_number(text) == one.answer for one, text in pairs) / len(pairs),
        "last": sum(last_number(text) == one.answer for one, text in pairs) / len(pairs),
    }


@torch.no_grad()
def answer(
    model: Any, tokenizer: Any, sums: Sequence[Sum], *, max_new_tokens: int, batch_rows: int
) -> list[str]:
    """What the model says to each, greedily; prompts of a batch are padded on the left."""
    prompts = [
        tokenizer.apply_chat_template(one.prompt, add_generation_prompt=True, tokenize=False)
        for one in sums
    ]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompts]
    settings = transformers.GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    texts: list[str] = []
    for start in range(0, len(rows), batch_rows):
        part = rows[start : start + batch_rows]
        longest = max(map(len, part))
        ids = torch.full((len(part), longest), int(tokenizer.eos_token_id))
        mask = torch.zeros_like(ids)
        for i, row in enumerate(part):
            ids[i, longest - len(row) :] = torch.tensor(row)
            mask[i, longest - len(row) :] = 1
        out = model.generate(
            ids.to(model.device), attention_mask=mask.to(model.device), generation_config=settings
        )
        texts += tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)
    return texts
