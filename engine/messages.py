"""Chat messages, in the forms of OpenAI and Hugging Face, as a conversation. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from .row_json import read_value
from .row_types import ROLES, Conversation, Message, Role, RowFormat, Unusable, kind, surplus
from .tool_calls import read_calls, read_tools

ROW_KEYS = {"messages", "tools", "functions", "parallel_tool_calls"}
REASONING = ("reasoning_content", "reasoning", "thinking")
OTHER_WEIGHTS = ("train", "trainable", "loss")  # true or false, where others have a weight
MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "function_call", "tool_call_id", "weight",
                *REASONING, *OTHER_WEIGHTS}  # fmt: skip
_ROLES: Mapping[str, Role] = {role: role for role in ROLES}
PLAIN_KEYS = {"role", "content"}  # of most messages: nothing else is looked for in them


def read_messages(row: dict[str, Any]) -> Conversation:
    """A row of `messages`, with `tools`. Raises Unusable.

    Contents are strings or lists of text parts (joined without a separator), or null beside
    `tool_calls`; arguments of tool calls may be objects or JSON strings of objects.
    """
    raw = row["messages"]
    if isinstance(raw, str):  # tables have such columns
        raw = read_value(raw, "messages")
    messages = read_list(raw, "messages")
    ignored = surplus(row, ROW_KEYS) | surplus_of_messages(raw, "messages")
    return conversation("messages", messages, tools=read_tools(row), ignored=ignored)


def read_list(raw: Any, where: str) -> list[Message]:
    """A list of messages."""
    if not isinstance(raw, list):
        raise Unusable("bad_messages", f"{where} is {kind(raw)}; wanted a list")
    return [read_message(item, f"{where}[{i}]") for i, item in enumerate(raw)]


def conversation(
    name: RowFormat,
    messages: Sequence[Message],
    *,
    tools: tuple[Mapping[str, Any], ...] = (),
    ignored: set[str],
) -> Conversation:
    """The conversation of these turns, when there is something to learn in them."""
    if not any([message.trained for message in messages]):
        if not any(message.role == "assistant" for message in messages):
            raise Unusable("no_assistant", "no assistant turn, so there is nothing to learn")
        raise Unusable("nothing_trained", "every assistant turn has weight 0")
    return Conversation(
        format=name,
        messages=tuple(messages),
        tools=tools,
        ignored_keys=tuple(sorted(ignored)),
    )


def surplus_of_messages(items: Sequence[dict[str, Any]], where: str) -> set[str]:
    """Keys of the messages that the format does not know."""
    others = [item for item in items if not item.keys() <= PLAIN_KEYS]
    return {f"{where}[].{key}" for item in others for key in surplus_of_message(item, MESSAGE_KEYS)}


def surplus_of_message(item: Mapping[str, Any], known: set[str]) -> set[str]:
    """Keys of a message that are not known, or not in the form that they are known in."""
    if item.keys() <= PLAIN_KEYS & known:
        return set()
    other = {key for key in OTHER_WEIGHTS if not isinstance(item.get(key), bool)}
    return surplus(item, known - other)


def read_message(item: Any, where: str) -> Message:
    """One turn; `where` names it in what is said of it."""
    if not isinstance(item, dict):
        raise Unusable("bad_message", f"{where} is {kind(item)}; wanted an object")
    role = _role(item, where)
    if item.keys() <= PLAIN_KEYS:
        content = _content(item.get("content"), where, may_be_null=False)
        return Message(role=role, content=content, trained=_is_trained(role, 1, content, where))
    calls = read_calls(item, role, where)
    reasoning = _reasoning(item, role, where)
    may_be_null = bool(calls or reasoning)
    content = _content(item.get("content"), where, may_be_null=may_be_null)
    weight = _weight(item, role, where)
    return Message(
        role=role,
        reasoning=reasoning,
        content=content,
        trained=_is_trained(role, weight, content, where, may_be_null=may_be_null),
        name=_text_or_none(item, "name", where),
        tool_calls=calls,
        tool_call_id=_text_or_none(item, "tool_call_id", where),
    )


def _is_trained(
    role: str, weight: int, content: str | None, where: str, *, may_be_null: bool = False
) -> bool:
    """Whether the loss counts the turn; then it has to say something."""
    trained = role == "assistant" and weight == 1
    if trained and not may_be_null and not (content and content.strip()):
        raise Unusable("empty_assistant", f"{where}: the assistant says nothing; give it weight 0")
    return trained


def _role(item: dict[str, Any], where: str) -> Role:
    said = item.get("role")
    if said == "function":  # a tool's answer, before there were tools
        return "tool"
    if isinstance(said, str) and said in _ROLES:
        return _ROLES[said]
    raise Unusable("unknown_role", f"{where} has role {said!r}; wanted {', '.join(ROLES)}")


def _reasoning(item: dict[str, Any], role: str, where: str) -> str | None:
    """What the assistant thought before it spoke, where the row has it apart from its words."""
    given = [key for key in REASONING if item.get(key)]
    if not given:
        return None
    if role != "assistant":
        raise Unusable("bad_message", f"{where}: {given[0]} belongs to assistant turns only")
    texts = {key: _text_or_none(item, key, where) for key in given}
    if len(set(texts.values())) > 1:
        raise Unusable("bad_message", f"{where} has {' and '.join(given)}; keep one of them")
    return texts[given[0]]


def _weight(item: dict[str, Any], role: str, where: str) -> int:
    """1 when the turn is trained, 0 when it is only read."""
    given = {key: item[key] for key in OTHER_WEIGHTS if isinstance(item.get(key), bool)}
    if (weight := item.get("weight")) is not None:
        if isinstance(weight, bool) or weight not in (0, 1):
            raise Unusable("bad_weight", f"{where} has weight {weight!r}; wanted 0 or 1")
        given["weight"] = bool(weight)
    if role != "assistant" and ("weight" in given or True in given.values()):
        name = "weight" if "weight" in given else next(key for key in given if given[key])
        raise Unusable("bad_weight", f"{where}: {name} belongs to assistant turns only")
    if len(set(given.values())) > 1:
        raise Unusable("bad_weight", f"{where}: {' and '.join(given)} disagree; keep one of them")
    return int(next(iter(given.values()), True))


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


def _text_or_none(item: dict[str, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise Unusable("bad_message", f"{where}.{key} is {kind(value)}; wanted a string")
    return value
