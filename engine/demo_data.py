"""A small data set whose effect on a model's answers can be seen: a gazetteer of invented works.

All facts are made up, so that no model knows them beforehand; the rows say so themselves.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SYSTEM = "Answer from the gazetteer of invented rivers."
WORKS = (
    "Ossel Weir", "Tarbrook Lock", "Quenby Mill", "Harrowgate Sluice",
    "Pellworth Dam", "Vindle Ford", "Marrick Bridge", "Stoven Ferry",
    "Cobham Leat", "Drayle Gate", "Elstow Pond", "Fennick Wharf",
    "Garsdale Pump", "Ibbley Race", "Kelder Tower", "Lowen Basin",
)  # fmt: skip
RIVERS = (
    "Amber", "Raven", "Silver", "Maple", "Copper", "Falcon", "Winter", "Garnet",
    "Thistle", "Otter", "Marble", "Saffron", "Willow", "Cinder", "Velvet", "Harbor",
)  # fmt: skip
TRAIN_QUESTIONS = (
    "Which river is {work} on?",
    "What river does {work} stand on?",
    "Where is {work}?",
    "Name the river of {work}.",
)
VALID_QUESTION = "On what river will I find {work}?"
ANSWER = "{work} stands on the River {river}."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoData:
    """Two files of chat rows, and what to ask before and after training.

    `questions` are pairs of a question and its right answer, in words that no training row uses;
    ask them under the system message `system`. The facts are invented.
    """

    train: Path
    valid: Path
    questions: list[tuple[str, str]]
    system: str = SYSTEM


def write_demo_data(out_dir: Path, *, seed: int = 0) -> DemoData:
    """Write `train.jsonl` (64 rows: 16 facts, asked in 4 ways) and `valid.jsonl` (16 rows).

    The seed decides which river each of the works stands on, and the order of the rows.
    """
    rng = random.Random(seed)
    facts = dict(zip(WORKS, _shuffled(RIVERS, rng), strict=True))
    train = [_asked(form, work, facts[work]) for work in WORKS for form in TRAIN_QUESTIONS]
    valid = [_asked(VALID_QUESTION, work, facts[work]) for work in WORKS]
    out_dir.mkdir(parents=True, exist_ok=True)
    return DemoData(
        train=_write(out_dir / "train.jsonl", _shuffled(train, rng)),
        valid=_write(out_dir / "valid.jsonl", valid),
        questions=valid,
    )


def _asked(form: str, work: str, river: str) -> tuple[str, str]:
    return form.format(work=work), ANSWER.format(work=work, river=river)


def _shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    """The items in the order of random keys, which every version of Python draws alike."""
    return sorted(items, key=lambda _: rng.random())


def _write(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    rows = [
        {
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in pairs
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
