"""One line of a training file: a row in one of the known formats, or the reason why not. Pure.

Every row is judged by itself and keeps its own types: nothing is inferred from the rows before it,
no turn is left out, and a key that is not understood is reported, never lost without a word.
"""

from collections.abc import Callable, Mapping
from typing import Any

from .config import Objective
from .errors import BadSetting
from .messages import read_messages
from .other_formats import read_alpaca, read_prompt_completion, read_sharegpt, read_text
from .preferences import PREFERENCES, read_preference
from .row_json import read_object
from .row_types import ROW_FORMATS, AnyRow, Preference, Row, RowProblem, Unusable

MAX_KEYS_SHOWN = 8
# By the keys that betray it; the first that fits. A key that is null is not there: tools that merge
# tables of several formats write it so.
READERS: tuple[tuple[set[str], Callable[[dict[str, Any]], Row]], ...] = (
    ({"messages"}, read_messages),
    ({"conversations"}, read_sharegpt),
    ({"prompt", "completion"}, read_prompt_completion),
    ({"instruction", "output"}, read_alpaca),
    ({"text"}, read_text),
)


NO_COLUMNS: Mapping[str, str] = {}
OPTIONAL_KEYS = {"input", "system", "history", "tools", "functions"}
COLUMN_KEYS = OPTIONAL_KEYS.union({"chosen", "rejected"}, *(keys for keys, _ in READERS))


def check_columns(columns: Mapping[str, str]) -> None:
    """BadSetting unless the keys are those of formats, and no column is meant twice."""
    for key in columns:
        if key not in COLUMN_KEYS:
            wanted = ", ".join(sorted(COLUMN_KEYS))
            raise BadSetting(f"columns has {key!r}, which is no key of a format; wanted {wanted}")
    if len(set(columns.values())) < len(columns):
        raise BadSetting("columns names one column for two keys; give each its own")


def rename(row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with its columns under the keys that are meant. Raises Unusable.

    A column that is missing, or that another one would hide, is no guess to make.
    """
    if not columns:
        return row
    for key, column in columns.items():
        if column not in row and key not in OPTIONAL_KEYS:
            seen = ", ".join(sorted(row)[:MAX_KEYS_SHOWN]) or "none"
            said = f"the row has no column {column!r}, which is to be its {key} (keys seen: {seen})"
            raise Unusable("missing_column", said)
    taken = set(columns.values())
    for key in columns.keys() - taken:
        if row.get(key) is not None:
            said = f"the row has a {key} of its own beside the column {columns[key]!r}; drop one"
            raise Unusable("column_conflict", said)
    rest = {key: value for key, value in row.items() if key not in taken and key not in columns}
    return {key: row[column] for key, column in columns.items() if column in row} | rest


class RowReader:
    """Reads the rows of a data set, all of which must serve one objective.

    `objective` is what the rows are wanted for; where it was left open the first row decides.
    `columns` says which column of the rows is meant by a key of their format; ValueError for a key
    that no format has.
    """

    def __init__(
        self, objective: Objective | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        self.objective: Objective | None = objective
        self._given = objective is not None
        self._columns = columns or NO_COLUMNS
        check_columns(self._columns)

    def read(self, line: bytes) -> AnyRow | RowProblem:
        """The row of a line, or why it is of no use."""
        row = parse_row(line, self.objective, self._columns)
        if isinstance(row, RowProblem):
            return row
        serves: Objective = "dpo" if isinstance(row, Preference) else "supervised"
        self.objective = self.objective or serves
        return row if serves == self.objective else self._misplaced(row)

    def _misplaced(self, row: AnyRow) -> RowProblem:
        """A row that serves the other objective. What is trained on is never guessed."""
        if isinstance(row, Preference):
            said = "the row is a preference, and to train on all of it would teach the rejected "
            said += "answer too; train with method dpo, or keep the good answers as messages"
        else:
            said = f"the row ({row.format}) has one answer, and dpo learns from pairs of them: "
            said += f"wanted {ROW_FORMATS['preference']}"
        if not self._given:
            other = "supervised rows" if self.objective == "supervised" else "preferences"
            said += f"; the rows before it are {other}, and a data set holds one kind"
        return RowProblem(code="wrong_kind", message=said)


def parse_row(
    line: bytes,
    objective: Objective | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> AnyRow | RowProblem:
    """Read one JSON object: chat messages, prompt/completion, text, alpaca, sharegpt, preference.

    A row that could be read either way is a preference where `objective` is dpo, else not.
    `columns` as in `RowReader`.
    """
    try:
        return _read(rename(read_object(line), columns), objective)
    except Unusable as unusable:
        return unusable.problem


def _read(row: dict[str, Any], objective: Objective | None) -> AnyRow:
    given = {key for key, value in row.items() if value is not None}
    if given & PREFERENCES and ("messages" not in given or objective == "dpo"):
        return read_preference(row)
    _refuse_judgements(row, given)
    for keys, read in READERS:
        if keys <= given:
            return read(row)
    keys_seen = ", ".join(sorted(row)[:MAX_KEYS_SHOWN]) or "none"
    more = ", …" if len(row) > MAX_KEYS_SHOWN else ""
    wanted = "; ".join(f"{name} ({keys})" for name, keys in ROW_FORMATS.items())
    said = f"the row's format is not known (keys seen: {keys_seen}{more}); accepted: {wanted}"
    lists = [key for key, value in row.items() if _holds_objects(value)]
    if {"role", "content"} <= given:
        said += '; is it a message? A row is {"messages": [...]}'
    if len(lists) == 1:
        said += f"; do the rows lie in its key {lists[0]!r}? Write that list alone"
    elif len(given) > 1 and all(isinstance(row[key], str) for key in given):
        said += "; if these are such keys by other names, name them as columns: prompt=question"
    raise Unusable("unknown_format", said)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _refuse_judgements(row: dict[str, Any], given: set[str]) -> None:
    """Answers with a verdict: to train on all of them would teach the bad ones too."""
    if {"prompt", "completion"} <= given and isinstance(row.get("label"), bool):
        said = "the row's label says whether its completion is good, which no method here uses; "
        raise Unusable("unsupported_format", said + "keep the good ones, without a label")
