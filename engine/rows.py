"""One line of a training file: a conversation, or the reason why it is none. Pure.

Every row is judged by itself and keeps its own types: nothing is inferred from the rows before it,
no turn is left out, and a key that is not understood is reported, never lost without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

MAX_LINE_BYTES = 64 * 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")
ROW_KEYS = {"messages", "tools", "parallel_tool_calls"}
MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "weight"}
OTHER_FORMATS = (  # keys that betray a format, and its name
    ({"prompt", "completion"}, "prompt/completion"),
    ({"prompt", "chosen", "rejected"}, "preference pairs"),
    ({"preferred_output"}, "preference pairs"),
    ({"conversations"}, "sharegpt"),
    ({"instruction", "output"}, "alpaca"),
    ({"text"}, "plain text"),
)
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

    `content` is None only beside tool calls. `trained` is true for the assistant's turns that the
    loss counts: those without `weight`, or with weight 1.
    """

    role: Role
    content: str | None
    trained: bool = False
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The message as chat templates expect it; keys without a value are left out."""
        values: dict[str, Any] = {"role": self.role, "content": self.content}
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
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
    tools: tuple[Mapping[str, Any], ...] = ()
    ignored_keys: tuple[str, ...] = ()


class _Unusable(Exception):
    """Carries a RowProblem out of the nested readers to `parse_row`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = RowProblem(code=code, message=message)


def parse_row(line: bytes) -> Conversation | RowProblem:
    """Read one line of a JSONL file of chat `messages`.

    Contents are strings or lists of text parts (joined without a separator), or null beside
    `tool_calls`; arguments of tool calls may be objects or JSON strings of objects.
    """
    try:
        return _conversation(_object(line))
    except _Unusable as unusable:
        return unusable.problem


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        limit = f"longer than {MAX_LINE_BYTES // 2**20} MiB"
        raise _Unusable("line_too_long", f"the line is {limit}; split the row")
    try:
        row = orjson.loads(line.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        hint = ""
        if line.lstrip().startswith(b"["):
            hint = "; a JSON array is not supported, write one object a line"
        said = f"not valid JSON: {error.msg} (column {error.colno}){hint}"
        raise _Unusable("invalid_json", said) from error
    if not isinstance(row, dict):
        raise _Unusable("not_an_object", f"the row is {_kind(row)}; wanted an object")
    return row


def _conversation(row: dict[str, Any]) -> Conversation:
    if "messages" not in row:
        raise _Unusable(*_no_messages(row))
    raw = row["messages"]
    if not isinstance(raw, list):
        raise _Unusable("bad_messages", f"messages is {_kind(raw)}; wanted a list")
    messages = tuple(_message(item, f"messages[{i}]") for i, item in enumerate(raw))
    roles = {message.role for message in messages}
    if "assistant" not in roles:
        raise _Unusable("no_assistant", "no assistant turn, so there is nothing to learn")
    if not any(message.trained for message in messages):
        raise _Unusable("nothing_trained", "every assistant turn has weight 0")
    return Conversation(
        messages=messages,
        tools=_tools(row.get("tools")),
        ignored_keys=_ignored_keys(row),
    )


def _no_messages(row: dict[str, Any]) -> tuple[str, str]:
    keys = ", ".join(sorted(row)[:8]) or "none"
    for betraying, name in OTHER_FORMATS:
        if betraying <= set(row):
            return "unsupported_format", f"the row is in {name} form; wanted chat messages"
    return "no_messages", f"no key messages (keys seen: {keys})"


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise _Unusable("bad_message", f"{where} is {_kind(item)}; wanted an object")
    role = item.get("role")
    if role not in ROLES:
        raise _Unusable("unknown_role", f"{where} has role {role!r}; wanted {', '.join(ROLES)}")
    if item.get("function_call") is not None:
        raise _Unusable("function_call", f"{where} uses function_call; write it as tool_calls")
    calls = _tool_calls(item.get("tool_calls"), role, where)
    content = _content(item.get("content"), where, may_be_null=bool(calls))
    trained = role == "assistant" and _weight(item, where) == 1
    if trained and not calls and not (content and content.strip()):
        raise _Unusable("empty_assistant", f"{where}: the assistant says nothing; give it weight 0")
    if role != "assistant" and item.get("weight") is not None:
        raise _Unusable("bad_weight", f"{where}: weight belongs to assistant turns only")
    return Message(
        role=role,
        content=content,
        trained=trained,
        name=_text_or_none(item, "name", where),
        tool_calls=calls,
        tool_call_id=_text_or_none(item, "tool_call_id", where),
    )


def _weight(item: dict[str, Any], where: str) -> int:
    weight = item.get("weight")
    if weight is None:
        return 1
    if isinstance(weight, bool) or weight not in (0, 1):
        raise _Unusable("bad_weight", f"{where} has weight {weight!r}; wanted 0 or 1")
    return int(weight)


def _content(content: Any, where: str, *, may_be_null: bool) -> str | None:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is None and may_be_null:
        return None
    wanted = "a string or a list of text parts"
    raise _Unusable("bad_content", f"{where}.content is {_kind(content)}; wanted {wanted}")


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise _Unusable("bad_content", f"{where} is {_kind(part)}; wanted an object")
    if part.get("type") != "text":
        raise _Unusable("not_text", f"{where} has type {part.get('type')!r}; only text is trained")
    text = part.get("text")
    if not isinstance(text, str):
        raise _Unusable("bad_content", f"{where}.text is {_kind(text)}; wanted a string")
    return text


def _tool_calls(calls: Any, role: str, where: str) -> tuple[Mapping[str, Any], ...]:
    if calls is None or calls == []:
        return ()
    if role != "assistant":
        raise _Unusable("bad_tool_calls", f"{where}: tool_calls belong to assistant turns only")
    if not isinstance(calls, list):
        raise _Unusable("bad_tool_calls", f"{where}.tool_calls is {_kind(calls)}; wanted a list")
    return tuple(_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls))


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _Unusable("bad_tool_calls", f"{where}: wanted an object with function.name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError as error:
            message = f"{where}.function.arguments is not valid JSON: {error}"
            raise _Unusable("bad_arguments", message) from error
    if not isinstance(arguments, dict):
        message = f"{where}.function.arguments is {_kind(arguments)}; wanted an object"
        raise _Unusable("bad_arguments", message)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _Unusable("bad_tools", f"tools is {_kind(tools)}; wanted a list of objects")
    return tuple(tools)


def _text_or_none(item: dict[str, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise _Unusable("bad_message", f"{where}.{key} is {_kind(value)}; wanted a string")
    return value


def _ignored_keys(row: dict[str, Any]) -> tuple[str, ...]:
    keys = {key for key, value in row.items() if key not in ROW_KEYS and value is not None}
    for item in row["messages"]:
        unknown = {key for key, value in item.items() if value is not None} - MESSAGE_KEYS
        keys |= {f"messages[].{key}" for key in unknown}
    return tuple(sorted(keys))


def _kind(value: Any) -> str:
    return JSON_NAMES[type(value)]
