"""What became of every row of a data set: counts, places, lengths, and a preview of the labels."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np

from .config import Objective
from .row_types import RowFormat

Overlong = Literal["error", "drop", "truncate_left", "truncate_right"]
MAX_PLACES = 20
MAX_EXAMPLES = 3
PART_THEM = (
    "where the template changes a turn once the conversation goes on, set train_on to "
    "each_assistant (a row for each turn) or last_assistant, or give other turns weight 0"
)
ADVICE = {
    "overlong": (
        "shorten them, raise max_seq_len, or set overlong to drop, truncate_left or truncate_right"
    ),
    "no_template": "a model that chats brings its template; base models take plain text",
    "template_error": (
        "reword them so that the model's template accepts them; where it wants users and "
        "assistants in turn, put what the system says into the first turn of the user"
    ),
    "template_rewrites_history": PART_THEM,
    "turn_lost": PART_THEM,
    "reasoning_lost": PART_THEM,
}
WARNINGS = {  # notes that a person should act on, and why
    "in_training": "are in the training data too, so the evaluation loss looks better than it is",
    "answer_cut": "lost part of what would be trained when they were cut to max_seq_len",
    "control_token_text": "hold text that the model reads as control tokens",
    "orphan_answer": "hold a tool's answer to a call that was not made",
    "history_reasoning": "hold reasoning that the model's chat template leaves out",
}


class DataProblem(ValueError):
    """A data set that cannot be trained on, told to the person who brought it.

    `report` is what was found, as far as the rows were read.
    """

    def __init__(self, message: str, report: "DataReport | None" = None) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """A line of a file, counted from 1; in a JSON array also the item that begins on it.

    The rows of a Parquet file lie on no line: 0, and `item` counts them.
    """

    file: str
    line: int
    item: int | None = None

    def __str__(self) -> str:
        return f"{self.file}, {self.within}"

    @property
    def within(self) -> str:
        """The place in its file."""
        if not self.line:
            return f"row {self.item}"
        return f"line {self.line}" + (f" (item {self.item})" if self.item else "")


@dataclass(slots=True)
class Tally:
    """How often something was found, where it was first, and the first few explanations."""

    count: int = 0
    places: list[Place] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    def add(self, place: Place, example: str) -> None:
        """Count one finding."""
        self.count += 1
        if len(self.places) < MAX_PLACES:
            self.places.append(place)
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{place}: {example}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The account of a data set. `rows` = `kept` + bad rows + rows dropped by the policy.

    `problems` are rows that cannot be used, by reason; one of them refuses the data set.
    `notes` are findings on the others: `duplicate`, `overlong_dropped`, `overlong_truncated`,
    `answer_cut` (a truncated row lost trained tokens), `control_token_text`, `ignored_keys`,
    `orphan_answer` (of a tool, to a call that was not made), `white_space_cut` and
    `history_reasoning` (what the chat template leaves out), `in_training` (a validation row is a
    training row too). `formats` counts rows by their format, bad ones without a known format aside;
    `objective` says what they can train. `numerics` holds
    what decides tokens and labels beside the rows: `train_on`, `max_seq_len`, `overlong`,
    `vocab_size`, and the end token and hash of the chat template. `padding` is what padding would
    cost in such steps, and packing saves. `tokens` and `trained_tokens` count kept rows after
    truncation; `histogram` maps a number of tokens to the rows of at most that length (and more
    than the entry before), before it. `overlong_rows` are the first over-long rows with their
    tokens. `preview` shows two rows as pieces of text with the flag `trained`. A preference is one
    row; its answers, each with the prompt before it, are two in lengths, tokens and preview, the
    chosen one first. `examples` are rows of the data set: more than `kept` where each turn is
    trained in a row of its own. `files` name bytes, SHA-256 and form of what was read; `complete`
    is false where the reading was ended before its end.
    """

    files: tuple[Mapping[str, Any], ...]
    rows: int
    kept: int
    blank_lines: int
    problems: Mapping[str, Tally]
    notes: Mapping[str, Tally]
    tokens: int
    trained_tokens: int
    longest: int
    max_seq_len: int
    overlong: Overlong
    histogram: Mapping[str, int]
    overlong_rows: tuple[tuple[Place, int], ...]
    preview: tuple[Sequence[Mapping[str, Any]], ...]
    objective: Objective
    formats: Mapping[RowFormat, int]
    numerics: Mapping[str, Any]
    padding: Mapping[str, Any]
    examples: int
    complete: bool = True

    @property
    def bad_rows(self) -> int:
        """Rows that cannot be used."""
        return sum(tally.count for tally in self.problems.values())

    @property
    def duplicates(self) -> int:
        """Kept rows whose tokens and labels equal those of an earlier row."""
        return self.notes["duplicate"].count if "duplicate" in self.notes else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know before training, a sentence each."""
        found = [(self.notes[code], why) for code, why in WARNINGS.items() if code in self.notes]
        return tuple(
            f"{tally.count} of {self.rows} rows {why} ({tally.examples[0]})" for tally, why in found
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values, with warnings and the numbers of two kinds of rows."""
        derived = {"duplicates": self.duplicates, "bad_rows": self.bad_rows}
        return {**asdict(self), **derived, "warnings": self.warnings}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` gave, read back from JSON."""
        made = {name: values[name] for name in (f.name for f in fields(cls)) if name in values}
        for name in ("problems", "notes"):
            made[name] = {code: _tally(tally) for code, tally in made[name].items()}
        long = ((Place(**place), tokens) for place, tokens in made["overlong_rows"])
        made |= {"overlong_rows": tuple(long)}
        made |= {name: tuple(made[name]) for name in ("files", "preview")}
        return cls(**made)

    def check(self) -> None:
        """DataProblem, with places and ways out, unless every row counts and some token trains."""
        names = ", ".join(entry["name"] for entry in self.files)
        if not self.rows:
            raise DataProblem(f"{names}: no rows; wanted one JSON object a line", self)
        if self.problems:
            raise DataProblem(f"{names}: {_bad_rows(self)}", self)
        if not self.trained_tokens:
            raise DataProblem(
                f"{names}: no trained token is left of {self.rows} rows ({_counts(self.notes)}); "
                f"raise max_seq_len, now {self.max_seq_len} tokens",
                self,
            )


def _tally(values: Mapping[str, Any]) -> Tally:
    places = [Place(**place) for place in values["places"]]
    return Tally(count=values["count"], places=places, examples=list(values["examples"]))


def _bad_rows(report: DataReport) -> str:
    lines = [
        f"{report.bad_rows} of {report.rows} rows cannot be used, and none is left out in silence: "
        f"{_counts(report.problems)}. Correct or remove them."
    ]
    for code, tally in sorted(report.problems.items(), key=lambda item: -item[1].count):
        lines += [f"  {example}" for example in tally.examples]
        rest = tally.places[len(tally.examples) :]
        more = ", ".join(str(place.item or place.line) for place in rest)
        if more:
            where = "in items" if rest[0].item else "on lines"
            where = where if rest[0].line else "in rows"
            lines.append(f"  {code} also {where} {more}{', …' if tally.count > MAX_PLACES else ''}")
        if code in ADVICE:
            lines.append(f"  {code}: {ADVICE[code]}")
    return "\n".join(lines)


def _counts(tallies: Mapping[str, Tally]) -> str:
    return ", ".join(f"{tally.count} x {code}" for code, tally in sorted(tallies.items()))


def length_histogram(lengths: Sequence[int]) -> dict[str, int]:
    """Rows by length, in classes that double: {"32": rows of 1 to 32 tokens, "64": 33 to 64 …}."""
    counts: dict[str, int] = {}
    upper = np.maximum(32, 2 ** np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64))
    for top, rows in zip(*np.unique(upper, return_counts=True), strict=True):
        counts[str(top)] = int(rows)
    return counts
