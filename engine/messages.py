"""Chat messages, in the forms of OpenAI and Hugging Face, as a conversation. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from .row_types import ROLES, Conversation, Message, RowFormat, Unusable, kind, surplus

ROW_KEYS = {"messages", "tools", "parallel_tool_calls"}
MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "weight"}


def read_messages(row: dict[str, Any]) -> Conversation:
    """A row of `messages`, with `tools`. Raises Unusable.

    Contents are strings or lists of text parts (joined without a separator), or null beside
    `tool_calls`; arguments of tool calls may be objects or JSON strings of objects.
    """
    messages = read_list(row["messages"], "messages")
    ignored = surplus(row, ROW_KEYS) | surplus_of_messages(row["messages"], "messages")
    return conversation("messages", messages, tools=row.get("tools"), ignored=ignored)


def read_list(raw: Any, where: str) -> list[Message]:
    """A list of messages."""
    if not isinstance(raw, list):
        raise Unusable("bad_messages", f"{where} is {kind(raw)}; wanted a list")
    return [read_message(item, f"{where}[{i}]") for i, item in enumerate(raw)]


def conversation(
    name: RowFormat, messages: Sequence[Message], *, tools: Any, ignored: set[str]
) -> Conversation:
    """The conversation of these turns, when there is something to learn in them."""
    if not any(message.role == "assistant" for message in messages):
        raise Unusable("no_assistant", "no assistant turn, so there is nothing to learn")
    if not any(message.trained for message in messages):
        raise Unusable("nothing_trained", "every assistant turn has weight 0")
    return Conversation(
        format=name,
        messages=tuple(messages),
        tools=read_tools(tools),
        ignored_keys=tuple(sorted(ignored)),
    )


def surplus_of_messages(items: Sequence[dict[str, Any]], where: str) -> set[str]:
    """Keys of the messages that the format does not know."""
    return {f"{where}[].{key}" for item in items for key in surplus(item, MESSAGE_KEYS)}


def read_message(item: Any, where: str) -> Message:
    """One turn; `where` names it in what is said of it."""
    if not isinstance(item, dict):
        raise Unusable("bad_message", f"{where} is {kind(item)}; wanted an object")
    role = item.get("role")
    if role not in ROLES:
        raise Unusable("unknown_role", f"{where} has role {role!r}; wanted {', '.join(ROLES)}")
    if item.get("function_call") is not None:
        raise Unusable("function_call", f"{where} uses function_call; write it as tool_calls")
    calls = _tool_calls(item.get("tool_calls"), role, where)
    content = _content(item.get("content"), where, may_be_null=bool(calls))
    trained = role == "assistant" and _weight(item, where) == 1
    if trained and not calls and not (content and content.strip()):
        raise Unusable("empty_assistant", f"{where}: the assistant says nothing; give it weight 0")
    if role != "assistant" and item.get("weight") is not None:
        raise Unusable("bad_weight", f"{where}: weight belongs to assistant turns only")
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
        raise Unusable("bad_weight", f"{where} has weight {weight!r}; wanted 0 or 1")
    return int(weight)


def _content(content: Any, where: str, *, may_be_null: bool) -> str | None:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is None and may_be_null:
        return None
    wanted = "a string or a list of text parts"
    raise Unusable("bad_content", f"{where}.content is {kind(content)}; wanted {wanted}")


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise Unusable("bad_content", f"{where} is {kind(part)}; wanted an object")
    if part.get("type") != "text":
        raise Unusable("not_text", f"{where} has type {part.get('type')!r}; only text is trained")
    text = part.get("text")
    if not isinstance(text, str):
        raise Unusable("bad_content", f"{where}.text is {kind(text)}; wanted a string")
    return text


def _tool_calls(calls: Any, role: str, where: str) -> tuple[Mapping[str, Any], ...]:
    if calls is None or calls == []:
        return ()
    if role != "assistant":
        raise Unusable("bad_tool_calls", f"{where}: tool_calls belong to assistant turns only")
    if not isinstance(calls, list):
        raise Unusable("bad_tool_calls", f"{where}.tool_calls is {kind(calls)}; wanted a list")
    return tuple(_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls))


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable("bad_tool_calls", f"{where}: wanted an object with function.name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError as error:
            message = f"{where}.function.arguments is not valid JSON: {error}"
            raise Unusable("bad_arguments", message) from error
    if not isinstance(arguments, dict):
        message = f"{where}.function.arguments is {kind(arguments)}; wanted an object"
        raise Unusable("bad_arguments", message)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def read_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """The tools of a row, objects as they are."""
    if tools is None:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Unusable("bad_tools", f"tools is {kind(tools)}; wanted a list of objects")
    return tuple(tools)


def _text_or_none(item: dict[str, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise Unusable("bad_message", f"{where}.{key} is {kind(value)}; wanted a string")
    return value
