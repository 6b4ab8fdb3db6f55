"""Whether a rendered conversation says what the row says: nothing lost, nothing rewritten. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from .example import RenderProblem
from .row_types import Conversation, Message

Note = tuple[str, str]
SYSTEM = ("system", "developer")


def check_nothing_lost(conversation: Conversation, text: str) -> tuple[Note, ...]:
    """Find every turn, in order, and every tool in the text; what may be missing is noted.

    That is white space around a turn, and the reasoning of turns that are not trained: templates
    leave it out where the model, when it is used, does not see it either. RenderProblem for
    anything else.
    """
    notes: list[Note] = []
    at = 0
    for i, message in enumerate(conversation.messages):
        where = f"messages[{i}]"
        free = message.role in SYSTEM  # templates put it where they like
        end = _find(message, where, text, 0 if free else at, notes)
        at = at if free else end
        _check_reasoning(message, where, text, notes)
        _check_calls(message, where, text)
    for tool in conversation.tools:
        name = str(tool.get("function", tool).get("name", ""))
        if name not in text:
            reason = f"the model's chat template does not show the tool {name!r}; leave tools out"
            raise RenderProblem("tools_lost", reason)
    return tuple(notes)


def what_was_said(message: Message) -> Iterator[tuple[str, ...]]:
    """All that a trained turn must hold; each in spellings of which one must be there."""
    words = (message.content or "").strip()
    for part in _thought_and_answer(words) or (words,):
        yield (part,)
    if message.reasoning:
        yield (message.reasoning.strip(),)
    for call in message.tool_calls:
        yield (call["function"]["name"],)
        for text in _leaves(call["function"]["arguments"]):
            yield (text, _quoted(text), json.dumps(text)[1:-1])


def _find(message: Message, where: str, text: str, at: int, notes: list[Note]) -> int:
    """Where the turn's words end in the text, sought from `at` on."""
    content = message.content or ""
    begin = text.find(content, at)
    if begin >= 0:
        return begin + len(content)
    words = content.strip()
    begin = text.find(words, at)
    if begin >= 0:
        said = f"the chat template cuts white space off the ends of {where} ({message.role})"
        notes.append(("white_space_cut", said))
        return begin + len(words)
    quoted = _quoted(words)  # some templates quote what tools answer
    if message.role == "tool" and (begin := text.find(quoted, at)) >= 0:
        return begin + len(quoted)
    if message.role == "assistant" and (parts := _thought_and_answer(words)):
        return _find_reasoning(message, where, text, at, parts, notes)
    raise _lost(message, where)


def _find_reasoning(
    message: Message,
    where: str,
    text: str,
    at: int,
    parts: tuple[str, str],
    notes: list[Note],
) -> int:
    """Where a turn ends whose reasoning the template has set anew, or left out where it may."""
    thought, answer = parts
    begin = text.find(thought, at)
    end = text.find(answer, begin + len(thought)) if begin >= 0 else -1
    if end >= 0:
        said = f"the chat template sets white space around the reasoning of {where} anew"
        notes.append(("white_space_cut", said))
        return end + len(answer)
    end = text.find(answer, at)
    if message.trained or end < 0:
        raise _lost(message, where)
    notes.append(_left_out(where))
    return end + len(answer)


def _thought_and_answer(words: str) -> tuple[str, str] | None:
    """Reasoning that stands before the words, as many models write it, and the words."""
    thought, closed, answer = words.rpartition("</think>")
    before, _, thought = thought.rpartition("<think>")
    return (thought.strip(), answer.strip()) if closed and not before.strip() else None


def _lost(message: Message, where: str) -> RenderProblem:
    reason = f"the model's chat template loses or rewrites {where} ({message.role})"
    if message.trained and "</think>" in (message.content or ""):
        reason += (
            "; it keeps reasoning in the last turn alone, so train that one alone, or each apart"
        )
    if message.role in SYSTEM:
        reason += "; put its words into the first turn of the user"
    return RenderProblem("turn_lost", reason)


def _check_reasoning(message: Message, where: str, text: str, notes: list[Note]) -> None:
    if not message.reasoning or message.reasoning.strip() in text:
        return
    if message.trained:
        raise RenderProblem(
            "reasoning_lost",
            f"the model's chat template does not show the reasoning of {where}; train its last "
            "turn alone, write the reasoning into content as the model does, or leave it out",
        )
    notes.append(_left_out(where))


def _check_calls(message: Message, where: str, text: str) -> None:
    if message.trained:
        return  # proven token by token
    for call in message.tool_calls:
        name = call["function"]["name"]
        if name not in text:
            reason = f"the model's chat template does not show the call of {name!r} in {where}"
            raise RenderProblem("turn_lost", reason)


def _left_out(where: str) -> Note:
    said = f"the chat template leaves out the reasoning of {where}, which is not trained"
    return "history_reasoning", said


def _leaves(value: Any) -> Iterator[str]:
    """Texts and whole numbers inside a value."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
