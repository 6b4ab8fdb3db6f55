"""What a line of a training file can be: a conversation, plain text, a preference, or why none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MAX_LINE_BYTES = 64 * 2**20
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
RowFormat = Literal[
    "messages", "prompt/completion", "text", "alpaca", "sharegpt", "preference", "openai preference"
]
ROW_FORMATS: dict[RowFormat, str] = {  # with the keys that they need
    "messages": "messages",
    "prompt/completion": "prompt, completion",
    "text": "text",
    "alpaca": "instruction, output",
    "sharegpt": "conversations",
    "preference": "chosen, rejected",
    "openai preference": "input, preferred_output, non_preferred_output",
}
JSON_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
JSON_NAMES |= {list: "a list", dict: "an object", type(None): "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """Why a row cannot be used: a `code` to count by and a `message` for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn. Text parts are joined; arguments of tool calls are objects, not JSON strings.

    `content` is None only beside tool calls or `reasoning`, what the assistant thought before it
    spoke, where that is apart from its words. `trained` is true for the assistant's turns that the
    loss counts: those without `weight`, or with weight 1.
    """

    role: Role
    content: str | None
    trained: bool = False
    reasoning: str | None = None
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The message as chat templates expect it; keys without a value are left out."""
        values: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is self.name is self.tool_call_id is None and not self.tool_calls:
            return values  # as of most
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        optional |= dict.fromkeys(("reasoning_content", "thinking"), self.reasoning)
        values |= {key: value for key, value in optional.items() if value is not None}
        if self.tool_calls:
            values["tool_calls"] = [dict(call) for call in self.tool_calls]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A row that can be rendered; at least one assistant turn is trained.

    `ignored_keys` names what the row holds beyond the format ("id", "messages[].refusal").
    """

    messages: tuple[Message, ...]
    format: RowFormat = "messages"
    tools: tuple[Mapping[str, Any], ...] = ()
    ignored_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """A row without roles. `prompt` is what precedes the trained text; None: all is trained."""

    format: RowFormat
    prompt: str | None
    completion: str
    ignored_keys: tuple[str, ...] = ()


Row = Conversation | PlainText


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Two answers to one prompt, each with the prompt before it: one is better than the other."""

    format: RowFormat
    chosen: Row
    rejected: Row
    ignored_keys: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[tuple[str, Row], tuple[str, Row]]:
        """Both answers by their names, the better one first."""
        return ("chosen", self.chosen), ("rejected", self.rejected)


AnyRow = Row | Preference


class Unusable(Exception):
    """Carries a RowProblem out of the nested readers to `parse_row`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = RowProblem(code=code, message=message)


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    return JSON_NAMES[type(value)]


def surplus(row: Mapping[str, Any], known: set[str]) -> set[str]:
    """Keys with a value that the row's format does not know."""
    if row.keys() <= known:
        return set()
    return {key for key, value in row.items() if value is not None} - known


def said(row: AnyRow) -> tuple[Any, list[Any]]:
    """What a row says, as JSON-ready values, and which turns train: the same for rows that differ
    in their format alone.

    A prompt with its completion says what a user's and an assistant's turn do.
    """
    if isinstance(row, Preference):
        contents, trained = zip(said(row.chosen), said(row.rejected), strict=True)
        return contents, list(trained)
    if isinstance(row, Conversation):
        turns = [turn.to_dict() for turn in row.messages]
        tools = [dict(tool) for tool in row.tools]
        return (turns, tools), [turn.trained for turn in row.messages]
    if row.prompt is None:
        return row.completion, [True]
    asked = Message(role="user", content=row.prompt).to_dict()
    answer = Message(role="assistant", content=row.completion).to_dict()
    return ([asked, answer], []), [False, True]
