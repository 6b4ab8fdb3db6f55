"""Formats other than chat messages, told as conversations where they have roles. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .messages import (
    OTHER_WEIGHTS,
    REASONING,
    conversation,
    read_list,
    read_message,
    surplus_of_message,
    surplus_of_messages,
)
from .row_types import Conversation, Message, PlainText, Role, Row, Unusable, kind, surplus
from .tool_calls import calls_in_text, read_tools

ALPACA_ASKS = ("instruction", "input", "system", "history")
TURN_KEYS = ("weight", *OTHER_WEIGHTS, *REASONING)
TOOL_CALL = ("function_call", "tool_call")
SHAREGPT_ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
    **dict.fromkeys(TOOL_CALL, "assistant"),
    **dict.fromkeys(("observation", "tool", "tool_response", "function_response"), "tool"),
}


def read_prompt_completion(row: dict[str, Any]) -> Row:
    """Two texts, or two lists of messages; the completion is trained. Raises Unusable."""
    prompt, completion = row["prompt"], row["completion"]
    ignored = surplus(row, {"prompt", "completion", "tools", "functions"})
    if isinstance(prompt, list) and isinstance(completion, list):
        asked = [_untrained(message) for message in read_list(prompt, "prompt")]
        answers = read_list(completion, "completion")
        ignored |= surplus_of_messages(prompt, "prompt")
        ignored |= surplus_of_messages(completion, "completion")
        tools = read_tools(row)
        return conversation("prompt/completion", [*asked, *answers], tools=tools, ignored=ignored)
    for name, value in (("prompt", prompt), ("completion", completion)):
        if not isinstance(value, str):
            wanted = "both as strings, or both as lists of messages"
            raise Unusable("bad_content", f"{name} is {kind(value)}; wanted {wanted}")
    return PlainText(
        format="prompt/completion",
        prompt=prompt,
        completion=_not_blank(completion, "completion"),
        ignored_keys=tuple(sorted(surplus(row, {"prompt", "completion"}))),
    )


def read_text(row: dict[str, Any]) -> PlainText:
    """One text, trained as a whole. Raises Unusable."""
    text = _not_blank(_text(row, "text"), "text")
    ignored = tuple(sorted(surplus(row, {"text"})))
    return PlainText(format="text", prompt=None, completion=text, ignored_keys=ignored)


def read_alpaca(row: dict[str, Any]) -> Conversation:
    """Instruction and input (a line below it) are the user's turn, the output is the assistant's.

    `history` is a list of pairs, earlier turns of both. Raises Unusable.
    """
    answer = _answer(_not_blank(_text(row, "output"), "output"))
    ignored = surplus(row, {*ALPACA_ASKS, "output"})
    return conversation("alpaca", [*alpaca_asks(row), answer], ignored=ignored)


def alpaca_asks(row: Mapping[str, Any]) -> list[Message]:
    """All that such a row says before the answer. Raises Unusable."""
    asked = [text for text in (_text(row, "instruction"), _text(row, "input")) if text]
    question = Message(role="user", content="\n".join(asked))
    return [*_system(row), *_history(row.get("history")), question]


def read_sharegpt(row: dict[str, Any]) -> Conversation:
    """Turns of `from` and `value`; a few sets write `role` and `content` there. Raises Unusable."""
    turns = sharegpt_turns(row["conversations"], "conversations")
    system = _system(row)
    if system and turns and turns[0].role == "system":
        raise Unusable("two_systems", "the row has a key system and a system turn; keep one")
    ignored = surplus(row, {"conversations", "system", "tools", "functions"})
    ignored |= surplus_of_turns(row["conversations"], "conversations")
    return conversation("sharegpt", [*system, *turns], tools=read_tools(row), ignored=ignored)


def sharegpt_turns(raw: Any, where: str) -> list[Message]:
    """A list of such turns. Raises Unusable."""
    if not isinstance(raw, list):
        raise Unusable("bad_messages", f"{where} is {kind(raw)}; wanted a list")
    return [_sharegpt_turn(item, f"{where}[{i}]") for i, item in enumerate(raw)]


def surplus_of_turns(items: Sequence[Mapping[str, Any]], where: str) -> set[str]:
    """Keys of such turns that are not known."""
    known = {"from", "value", "role", "content", *TURN_KEYS}
    return {f"{where}[].{key}" for item in items for key in surplus_of_message(item, known)}


def _sharegpt_turn(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise Unusable("bad_message", f"{where} is {kind(item)}; wanted an object")
    if "from" not in item and "role" in item:
        return read_message(item, where)
    said_by, value = item.get("from"), item.get("value")
    role = SHAREGPT_ROLES.get(said_by.lower()) if isinstance(said_by, str) else None
    if role is None:
        wanted = ", ".join(SHAREGPT_ROLES)
        raise Unusable("unknown_role", f"{where} is from {said_by!r}; wanted {wanted}")
    if not isinstance(value, str):
        raise Unusable("bad_content", f"{where}.value is {kind(value)}; wanted a string")
    turn: dict[str, Any] = {key: item[key] for key in TURN_KEYS if key in item}
    turn |= {"role": role, "content": value}
    if str(said_by).lower() in TOOL_CALL:
        turn |= {"content": None, "tool_calls": calls_in_text(value, f"{where}.value")}
    return read_message(turn, where)


def _system(row: Mapping[str, Any]) -> list[Message]:
    text = _text(row, "system")
    return [Message(role="system", content=text)] if text else []


def _history(pairs: Any) -> list[Message]:
    messages = []
    for i, pair in enumerate(_list(pairs, "history")):
        turns = _list(pair, f"history[{i}]")
        if len(turns) != 2 or not all(isinstance(text, str) for text in turns):
            said = f"history[{i}] is no pair of strings, what was asked and what was answered"
            raise Unusable("bad_content", said)
        messages += [Message(role="user", content=turns[0])]
        messages += [_answer(_not_blank(turns[1], f"history[{i}][1]"))]
    return messages


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unusable("bad_content", f"{where} is {kind(value)}; wanted a list")
    return value


def _answer(text: str) -> Message:
    return Message(role="assistant", content=text, trained=True)


def _untrained(message: Message) -> Message:
    return replace(message, trained=False)


def _text(row: Mapping[str, Any], name: str) -> str:
    """The text of that key; nothing when it is null or left out."""
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unusable("bad_content", f"{name} is {kind(value)}; wanted a string")
    return value


def _not_blank(text: str, where: str) -> str:
    if not text.strip():
        raise Unusable("empty_answer", f"{where} is empty, so there is nothing to learn")
    return text
