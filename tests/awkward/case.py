"""One awkward file: its bytes, where such a file was reported, and what must become of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow
import pyarrow.parquet

from tiny import CHAT_TEMPLATE

END = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A row that must be refused: its line, the code, and words of the reason."""

    line: int
    code: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """`seen` is the report, as owner/repository#number.

    One of three fates: `refused`, words of why the file itself cannot be read; `problems`, the rows
    that stop the training; else the file is taken, and `trained` are the labelled runs of all rows,
    decoded. `advice` is told with problems. `notes` counts findings by code; `options` go to
    `prepare_dataset`. Of the rows in `valid`, `in_training` must be found in the training data too.
    """

    seen: str
    name: str
    data: bytes
    trained: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    refused: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = CHAT_TEMPLATE
    advice: str = ""
    tokenizer: str = "tiny"
    file_name: str = "train.jsonl"
    valid: bytes = b""
    in_training: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.seen})"


def lines(*rows: Any) -> bytes:
    """Rows as JSON lines; bytes are lines as they are."""
    made = [
        row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()
        for row in rows
    ]
    return b"".join(line + b"\n" for line in made)


def table(rows: list[dict[str, Any]]) -> bytes:
    """Rows as a Parquet file, with the columns that their union has."""
    sink = pyarrow.BufferOutputStream()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    made = pyarrow.table({key: [row.get(key) for row in rows] for key in columns})
    pyarrow.parquet.write_table(made, sink)
    return bytes(sink.getvalue())


def chat(*turns: Any, **rest: Any) -> dict[str, Any]:
    """A row of messages: texts are the user's and the assistant's in turn, others as they are."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[i % 2], "content": turn} if isinstance(turn, str) else turn
        for i, turn in enumerate(turns)
    ]
    return {"messages": messages, **rest}


def said_by(role: str, content: Any, **rest: Any) -> dict[str, Any]:
    """One message."""
    return {"role": role, "content": content, **rest}


def ended(*texts: str) -> tuple[str, ...]:
    """Texts with the end token that is trained behind each."""
    return tuple(text + END for text in texts)
