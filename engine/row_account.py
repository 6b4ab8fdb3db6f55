"""What becomes of each row: rendered and written, fitted to the length, or counted as a problem."""

import hashlib
import re
from array import array
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from .chat import NOT_TRAINED, ChatTokenizer, Example, RenderProblem, render
from .data_report import DataReport, Overlong, Place, Tally, length_histogram
from .rows import Conversation, RowProblem, parse_row
from .token_files import TokenWriter

MAX_OVERLONG_ROWS = 100
PREVIEW_ROWS = 2


class RowAccount:
    """Takes the lines of the files in order, writes usable rows, and ends in a DataReport."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        writer: TokenWriter,
        *,
        max_seq_len: int,
        vocab_size: int,
        overlong: Overlong,
    ) -> None:
        self._tokenizer = tokenizer
        self._writer = writer
        self._max_seq_len = max_seq_len
        self._vocab_size = vocab_size
        self._overlong: Overlong = overlong
        self._control = re.compile("|".join(map(re.escape, tokenizer.all_special_tokens)) or "(?!)")
        self._files: list[tuple[Path, Any]] = []
        self._num_rows = self._num_blank = self._num_trained = 0
        self._problems: dict[str, Tally] = defaultdict(Tally)
        self._notes: dict[str, Tally] = defaultdict(Tally)
        self._lengths = array("q")  # of every row that renders, before it is fitted
        self._places = array("q")  # of kept rows: file and line, in pairs
        self._hashes = array("Q")  # of kept rows
        self._overlong_rows: list[tuple[Place, int]] = []
        self._preview: list[list[dict[str, Any]]] = []

    def open_file(self, path: Path) -> None:
        """The lines that follow are of this file."""
        self._files.append((path, hashlib.sha256()))

    def take(self, number: int, line: bytes) -> None:
        """Judge one line, counted from 1; write the row when it can be used."""
        path, digest = self._files[-1]
        digest.update(line)
        if not line.strip():
            self._num_blank += 1
            return
        self._num_rows += 1
        place = Place(file=path.name, line=number)
        row = parse_row(line)
        if isinstance(row, RowProblem):
            self._problems[row.code].add(place, row.message)
            return
        try:
            example = render(self._tokenizer, row)
        except RenderProblem as problem:
            self._problems[problem.code].add(place, str(problem))
            return
        if (token := max(example.ids, default=0)) >= self._vocab_size:
            self._problems["unknown_token"].add(place, self._say_unknown(token))
            return
        self._note_oddities(place, row)
        self._lengths.append(len(example.ids))
        fitted = self._fit(place, example)
        if fitted is not None:
            self._keep(place, fitted)

    def _say_unknown(self, token: int) -> str:
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        return (
            f"the tokenizer makes token {token} of {text!r}, but the model's table ends at "
            f"{self._vocab_size - 1}; use the tokenizer that the model was trained with"
        )

    def _note_oddities(self, place: Place, row: Conversation) -> None:
        if row.ignored_keys:
            self._notes["ignored_keys"].add(place, ", ".join(row.ignored_keys))
        for i, message in enumerate(row.messages):
            found = self._control.search(message.content or "")
            if found:
                said = f"messages[{i}] holds {found[0]!r}, which the model reads as a control token"
                self._notes["control_token_text"].add(place, said)
                return

    def _fit(self, place: Place, example: Example) -> Example | None:
        """The example within max_seq_len; None when it is a problem or is dropped by the policy."""
        length = len(example.ids)
        if length <= self._max_seq_len:
            return example
        if len(self._overlong_rows) < MAX_OVERLONG_ROWS:
            self._overlong_rows.append((place, length))
        said = f"{length} tokens; max_seq_len is {self._max_seq_len}"
        if self._overlong == "error":
            self._problems["overlong"].add(place, said)
            return None
        fitted = None if self._overlong == "drop" else self._truncate(example)
        if fitted is None or not _num_predicted(fitted):
            self._notes["overlong_dropped"].add(place, said)
            return None
        self._notes["overlong_truncated"].add(place, said)
        if lost := _num_predicted(example) - _num_predicted(fitted):
            self._notes["answer_cut"].add(place, f"{lost} trained tokens were cut off")
        return fitted

    def _truncate(self, example: Example) -> Example:
        keep = slice(-self._max_seq_len, None)
        if self._overlong == "truncate_right":
            keep = slice(0, self._max_seq_len)
        return Example(ids=example.ids[keep], labels=example.labels[keep])

    def _keep(self, place: Place, example: Example) -> None:
        trained = [label != NOT_TRAINED for label in example.labels]
        self._writer.append(example.ids, trained)
        self._num_trained += _num_predicted(example)
        self._places.extend((len(self._files) - 1, place.line))
        row = np.asarray([example.ids, example.labels], dtype=np.int64).tobytes()
        digest = hashlib.blake2b(row, digest_size=8).digest()
        self._hashes.append(int.from_bytes(digest, "little"))
        if len(self._preview) < PREVIEW_ROWS:
            self._preview.append(self._pieces(example, trained))

    def _pieces(self, example: Example, trained: list[bool]) -> list[dict[str, Any]]:
        """The row's text in runs of tokens that are trained, or are not."""
        pieces = []
        for flag, run in groupby(zip(example.ids, trained, strict=True), key=lambda pair: pair[1]):
            text = self._tokenizer.decode([token for token, _ in run], skip_special_tokens=False)
            pieces.append({"text": text, "trained": flag})
        return pieces

    def report(self) -> DataReport:
        """The account of all lines taken so far."""
        lengths = np.diff(np.asarray(self._writer.offsets))
        return DataReport(
            files=tuple(
                {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}
                for path, digest in self._files
            ),
            rows=self._num_rows,
            kept=len(lengths),
            blank_lines=self._num_blank,
            problems=dict(self._problems),
            notes={**self._notes, **self._duplicates()},
            tokens=int(lengths.sum()),
            trained_tokens=self._num_trained,
            longest=int(lengths.max(initial=0)),
            max_seq_len=self._max_seq_len,
            overlong=self._overlong,
            histogram=length_histogram(self._lengths),
            overlong_rows=tuple(self._overlong_rows),
            preview=tuple(self._preview),
        )

    def _duplicates(self) -> dict[str, Tally]:
        """Rows that repeat an earlier one, by 64-bit hashes of their tokens and labels."""
        _, firsts, inverse = np.unique(
            np.asarray(self._hashes, dtype=np.uint64), return_index=True, return_inverse=True
        )
        first_of_row = firsts[inverse]
        tally = Tally()
        for i in np.flatnonzero(first_of_row != np.arange(len(first_of_row))).tolist():
            tally.add(self._place(i), f"the same as {self._place(first_of_row[i])}")
        return {"duplicate": tally} if tally.count else {}

    def _place(self, row: int) -> Place:
        file, line = self._places[2 * row : 2 * row + 2]
        return Place(file=self._files[file][0].name, line=line)


def _num_predicted(example: Example) -> int:
    """Labels that are predicted: the first token of a row is predicted from nothing."""
    return sum(label != NOT_TRAINED for label in example.labels[1:])
