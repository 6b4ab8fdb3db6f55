"""What becomes of each row: rendered and written, fitted to the length, or counted as a problem."""

import hashlib
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import numpy as np

from .config import NUM_ANSWERS, Objective
from .data_report import DataReport, Overlong, Place, Tally, length_histogram
from .example import NOT_TRAINED, ChatTokenizer, Example, RenderProblem
from .labels import TrainOn, render_rows
from .packing import padding_account
from .row_files import RowFile, RowText
from .row_index import RowIndex
from .row_types import AnyRow, Conversation, PlainText, Preference, RowFormat, RowProblem
from .rows import RowReader
from .token_files import TokenSink

MAX_OVERLONG_ROWS = 100
PREVIEW_ROWS = 2  # or both answers of one preference
END_OF_ANSWER = -1  # no token


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """What is wanted of rows, as `prepare_dataset` says it. Lengths in tokens."""

    max_seq_len: int
    vocab_size: int
    overlong: Overlong = "error"
    train_on: TrainOn = "assistant"
    objective: Objective | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    batch_rows: int = 8
    microbatch_rows: int = 4


class RowAccount:
    """Takes the lines of the files in order, writes usable rows, and ends in a DataReport."""

    def __init__(
        self, tokenizer: ChatTokenizer, sink: TokenSink, rules: RowRules, *, index: RowIndex
    ) -> None:
        self._tokenizer = tokenizer
        self._sink = sink
        self._rules = rules
        self._index = index  # of kept rows
        self._reader = RowReader(rules.objective, rules.columns)
        self._control = re.compile("|".join(map(re.escape, tokenizer.all_special_tokens)) or "(?!)")
        self._files: list[RowFile] = []
        self._formats: Counter[RowFormat] = Counter()
        self._num_rows = self._num_blank = self._num_kept = self._num_trained = 0
        self._problems: dict[str, Tally] = defaultdict(Tally)
        self._notes: dict[str, Tally] = defaultdict(Tally)
        self._lengths = array("q")  # of every row that renders, before it is fitted
        self._overlong_rows: list[tuple[Place, int]] = []
        self._preview: list[list[dict[str, Any]]] = []

    def open_file(self, file: RowFile) -> None:
        """The rows that follow are of this file."""
        self._files.append(file)

    def take(self, text: RowText) -> None:
        """Judge one line or item; write the row when it can be used."""
        if not text.data.strip():
            self._num_blank += 1
            return
        self._num_rows += 1
        place, row = text.place, self._reader.read(text.data)
        if isinstance(row, RowProblem):
            self._problems[row.code].add(place, row.message)
            return
        self._formats[row.format] += 1
        try:
            examples = render_rows(self._tokenizer, row, train_on=self._rules.train_on)
        except RenderProblem as problem:
            self._problems[problem.code].add(place, str(problem))
            return
        token = max(chain(*(one.ids for one in examples)), default=0)
        if token >= self._rules.vocab_size:
            self._problems["unknown_token"].add(place, self._say_unknown(token))
            return
        self._note_oddities(place, row)
        for code, said in dict(chain(*(one.notes for one in examples))).items():
            self._notes[code].add(place, said)
        self._lengths.extend(len(one.ids) for one in examples)
        # A preference's answers stay together; turns that are trained apart are rows of their own.
        rows = [examples] if isinstance(row, Preference) else [(one,) for one in examples]
        fitted = [self._fit(place, one) for one in rows]
        for one in filter(None, fitted):
            self._keep(place, one)
        self._num_kept += any(fitted)

    def _say_unknown(self, token: int) -> str:
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        return (
            f"the tokenizer makes token {token} of {text!r}, but the model's table ends at "
            f"{self._rules.vocab_size - 1}; use the tokenizer that the model was trained with"
        )

    def _note_oddities(self, place: Place, row: AnyRow) -> None:
        if row.ignored_keys:
            self._notes["ignored_keys"].add(place, ", ".join(row.ignored_keys))
        if isinstance(row, Conversation) and (said := _orphan(row)):
            self._notes["orphan_answer"].add(place, said)
        for where, content in _contents(row):
            found = self._control.search(content)
            if found:
                said = f"{where} holds {found[0]!r}, which the model reads as a control token"
                self._notes["control_token_text"].add(place, said)
                return

    def _fit(self, place: Place, row: Sequence[Example]) -> Sequence[Example] | None:
        """The row within max_seq_len; None when it is a problem or is dropped by the policy.

        Of a preference each answer, with the prompt before it, has to be that short.
        """
        length = max(len(one.ids) for one in row)
        if length <= self._rules.max_seq_len:
            return row
        if len(self._overlong_rows) < MAX_OVERLONG_ROWS:
            self._overlong_rows.append((place, length))
        said = f"{length} tokens; max_seq_len is {self._rules.max_seq_len}"
        if self._rules.overlong == "error":
            self._problems["overlong"].add(place, said)
            return None
        fitted = [] if self._rules.overlong == "drop" else [self._truncate(one) for one in row]
        if not fitted or not all(map(_num_predicted, fitted)) or _same(fitted):
            self._notes["overlong_dropped"].add(place, said)
            return None
        self._notes["overlong_truncated"].add(place, said)
        if lost := sum(map(_num_predicted, row)) - sum(map(_num_predicted, fitted)):
            self._notes["answer_cut"].add(place, f"{lost} trained tokens were cut off")
        return fitted

    def _truncate(self, example: Example) -> Example:
        keep = slice(-self._rules.max_seq_len, None)
        if self._rules.overlong == "truncate_right":
            keep = slice(0, self._rules.max_seq_len)
        return Example(ids=example.ids[keep], labels=example.labels[keep])

    def _keep(self, place: Place, row: Sequence[Example]) -> None:
        contents, labels = [], []
        for example in row:
            trained = [label != NOT_TRAINED for label in example.labels]
            self._sink.append(example.ids, trained)
            self._num_trained += _num_predicted(example)
            contents += [*example.ids, END_OF_ANSWER]
            labels += [*example.labels, END_OF_ANSWER]
            if len(self._preview) < PREVIEW_ROWS:
                self._preview.append(self._pieces(example, trained))
        both = np.asarray([contents, labels], dtype=np.int64)
        self._index.add(place, both[0].tobytes(), both[1].tobytes())
        self._sink.places.extend((len(self._files) - 1, place.line, place.item or 0))

    def _pieces(self, example: Example, trained: list[bool]) -> list[dict[str, Any]]:
        """The row's text in runs of tokens that are trained, or are not."""
        pieces = []
        for flag, run in groupby(zip(example.ids, trained, strict=True), key=lambda pair: pair[1]):
            text = self._tokenizer.decode([token for token, _ in run], skip_special_tokens=False)
            pieces.append({"text": text, "trained": flag})
        return pieces

    def report(self, training: RowIndex | None, *, complete: bool = True) -> DataReport:
        """The account of all rows taken so far; `training` holds rows that should not recur."""
        rules = self._rules
        objective = self._reader.objective or "supervised"
        count = NUM_ANSWERS[objective]
        offsets = np.asarray(self._sink.offsets)
        answers = np.diff(offsets)
        same = {"duplicate": self._index.duplicates()}
        if training is not None:
            same["in_training"] = self._index.found_in(training)
        return DataReport(
            files=tuple(file.describe() for file in self._files),
            rows=self._num_rows,
            kept=self._num_kept,
            examples=len(answers) // count,
            blank_lines=self._num_blank,
            problems=dict(self._problems),
            notes=dict(self._notes) | {code: tally for code, tally in same.items() if tally.count},
            tokens=int(offsets[-1]),
            trained_tokens=self._num_trained,
            longest=int(answers.max(initial=0)),
            max_seq_len=self._rules.max_seq_len,
            overlong=self._rules.overlong,
            histogram=length_histogram(self._lengths),
            overlong_rows=tuple(self._overlong_rows),
            preview=tuple(self._preview),
            objective=objective,
            formats=dict(self._formats),
            numerics=self._numerics(),
            padding=padding_account(
                offsets, count, batch_rows=rules.batch_rows, microbatch_rows=rules.microbatch_rows
            ),
            complete=complete,
        )

    def _numerics(self) -> dict[str, Any]:
        """What decides tokens and labels, beside the rows and the tokenizer's merges."""
        template = self._tokenizer.chat_template
        digest = hashlib.sha256(str(template).encode()).hexdigest() if template else None
        return {
            "train_on": self._rules.train_on,
            "max_seq_len": self._rules.max_seq_len,
            "overlong": self._rules.overlong,
            "vocab_size": self._rules.vocab_size,
            "end_token": self._tokenizer.eos_token_id,
            "chat_template_sha256": digest,
            "columns": dict(self._rules.columns),
        }


def _contents(row: AnyRow) -> list[tuple[str, str]]:
    """The texts of a row, each with its name."""
    if isinstance(row, Preference):
        return [(f"{a}: {where}", text) for a, one in row.answers for where, text in _contents(one)]
    if isinstance(row, PlainText):
        text = "text" if row.prompt is None else "completion"
        return [("prompt", row.prompt or ""), (text, row.completion)]
    return [(f"messages[{i}]", message.content or "") for i, message in enumerate(row.messages)]


def _orphan(row: Conversation) -> str | None:
    """What is said of a tool's answer to a call that no turn before it has made."""
    called: set[str] = set()
    for i, message in enumerate(row.messages):
        called |= {call["id"] for call in message.tool_calls if isinstance(call.get("id"), str)}
        asked = message.tool_call_id
        if message.role == "tool" and called and asked and asked not in called:
            return f"messages[{i}] answers the call {asked!r}, which no turn before it has made"
    return None


def _num_predicted(example: Example) -> int:
    """Labels that are predicted: the first token of a row is predicted from nothing."""
    labels = example.labels
    first = bool(labels) and labels[0] != NOT_TRAINED
    return len(labels) - labels.count(NOT_TRAINED) - first


def _same(row: Sequence[Example]) -> bool:
    """Whether truncation has left two answers that do not differ."""
    return len(row) > 1 and row[0] == row[1]
