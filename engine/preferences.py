"""Preferences: two answers to one prompt, of which one is better. Pure.

`prompt`, `chosen` and `rejected` are texts or lists of messages. Beside answers of one turn the
prompt may also be what alpaca, sharegpt or messages have before an answer. Where the answers are
whole conversations, the turns that both begin with are the prompt. OpenAI's form is
`input.messages`, `preferred_output` and `non_preferred_output`. The prompt is never trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from .messages import conversation, read_list, surplus_of_messages
from .other_formats import ALPACA_ASKS, alpaca_asks, sharegpt_turns, surplus_of_turns
from .row_types import (
    Message,
    PlainText,
    Preference,
    Row,
    RowFormat,
    Unusable,
    kind,
    said,
    surplus,
)
from .tool_calls import read_tools

PREFERENCES = {"chosen", "rejected", "preferred_output", "non_preferred_output"}
OPENAI = ("preferred_output", "non_preferred_output")
PLAIN = ("chosen", "rejected")
INPUT_KEYS = {"messages", "tools", "functions", "parallel_tool_calls"}


def read_preference(row: dict[str, Any]) -> Preference:
    """A row with a better and a worse answer. Raises Unusable."""
    if any(row.get(name) is not None for name in OPENAI):
        return _read_openai(row)
    for name in PLAIN:
        if row.get(name) is None:
            raise Unusable("half_a_preference", f"the row has no {name}; wanted both answers")
    answers = row["chosen"], row["rejected"]
    if row.get("prompt") is None and all(map(_is_one_turn, answers)):
        for key, read in PROMPTS_OF_OTHERS.items():
            if row.get(key) is not None:
                return _read_beside(row, *read(row))
    if all(isinstance(answer, str) for answer in answers):
        return _read_texts(row)
    return _read_conversations(row)


def _read_openai(row: dict[str, Any]) -> Preference:
    for name in ("input", *OPENAI):
        if row.get(name) is None:
            wanted = "input.messages, preferred_output and non_preferred_output"
            raise Unusable("half_a_preference", f"the row has no {name}; wanted {wanted}")
    asked = row["input"]
    if not isinstance(asked, dict):
        raise Unusable("bad_messages", f"input is {kind(asked)}; wanted an object with messages")
    prompt = read_list(asked.get("messages"), "input.messages")
    answers = [read_list(row[name], name) for name in OPENAI]
    ignored = surplus(row, {"input", *OPENAI})
    ignored |= {f"input.{key}" for key in surplus(asked, INPUT_KEYS)}
    for name, items in (("input.messages", asked["messages"]), *((n, row[n]) for n in OPENAI)):
        ignored |= surplus_of_messages(items, name)
    return _pair("openai preference", prompt, answers, OPENAI, read_tools(asked), ignored)


Prompt = tuple[list[Message], set[str], set[str]]  # turns, keys of the row, what was ignored


def _alpaca_prompt(row: dict[str, Any]) -> Prompt:
    return alpaca_asks(row), set(ALPACA_ASKS), set()


def _sharegpt_prompt(row: dict[str, Any]) -> Prompt:
    raw = row["conversations"]
    turns = sharegpt_turns(raw, "conversations")
    return turns, {"conversations"}, surplus_of_turns(raw, "conversations")


def _messages_prompt(row: dict[str, Any]) -> Prompt:
    turns = read_list(row["messages"], "messages")
    return turns, {"messages"}, surplus_of_messages(row["messages"], "messages")


PROMPTS_OF_OTHERS = {
    "instruction": _alpaca_prompt,
    "conversations": _sharegpt_prompt,
    "messages": _messages_prompt,
}


def _is_one_turn(answer: Any) -> bool:
    return isinstance(answer, str | dict) or (isinstance(answer, list) and len(answer) == 1)


def _read_beside(
    row: dict[str, Any], asked: list[Message], keys: set[str], ignored: set[str]
) -> Preference:
    """Answers of a turn each to a prompt in the form of another format."""
    if asked and asked[-1].role == "assistant":
        said = "the prompt ends with the assistant's turn, and chosen and rejected answer again; "
        raise Unusable("prompt_answered", said + "leave that turn out")
    answers = []
    for name in PLAIN:
        raw = row[name]
        if isinstance(raw, str):
            turn = Message(role="assistant", content=_said_in(row, name), trained=True)
            answers.append([turn])
            continue
        turns = raw if isinstance(raw, list) else [raw]
        answers.append(sharegpt_turns(turns, name))
        ignored |= surplus_of_turns(turns, name)
    ignored |= surplus(row, {*keys, *PLAIN, "tools", "functions"})
    return _pair("preference", asked, answers, PLAIN, read_tools(row), ignored)


def _read_texts(row: dict[str, Any]) -> Preference:
    """Answers that are texts need a prompt that is one: a text does not say where it ends."""
    prompt = row.get("prompt")
    ignored = surplus(row, {"prompt", *PLAIN})
    if isinstance(prompt, list):
        asked = read_list(prompt, "prompt")
        answers = [[Message(role="assistant", content=_said_in(row, name), trained=True)]
                   for name in PLAIN]  # fmt: skip
        ignored |= surplus_of_messages(prompt, "prompt")
        ignored -= {"tools", "functions"}
        return _pair("preference", asked, answers, PLAIN, read_tools(row), ignored)
    if not isinstance(prompt, str):
        raise Unusable(
            "no_prompt",
            "as texts chosen and rejected need a prompt that is a text or a list of messages, but "
            f"prompt is {kind(prompt)}; or write both as lists of messages, the prompt's first",
        )
    texts = [PlainText(format="preference", prompt=prompt, completion=_said_in(row, name))
             for name in PLAIN]  # fmt: skip
    return _checked("preference", texts[0], texts[1], ignored)


def _said_in(row: dict[str, Any], name: str) -> str:
    text: str = row[name]
    if not text.strip():
        raise Unusable("empty_answer", f"{name} is empty, so there is nothing to compare")
    return text


def _read_conversations(row: dict[str, Any]) -> Preference:
    """Answers that are messages; a single message may stand without its list."""
    ignored = surplus(row, {"prompt", *PLAIN, "tools", "functions"})
    answers = []
    for name in PLAIN:
        raw = [row[name]] if isinstance(row[name], dict) else row[name]
        answers.append(read_list(raw, name))
        ignored |= surplus_of_messages(raw, name)
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        asked = read_list(prompt, "prompt")
        ignored |= surplus_of_messages(prompt, "prompt")
        if all(_bare(answer[: len(asked)]) == _bare(asked) for answer in answers):
            answers = [answer[len(asked) :] for answer in answers]
    elif prompt is None or isinstance(prompt, str):
        asked, answers = _shared_turns(answers, prompt)
    else:
        wanted = "wanted a text or a list of messages"
        raise Unusable("bad_content", f"prompt is {kind(prompt)}; {wanted}")
    return _pair("preference", asked, answers, PLAIN, read_tools(row), ignored)


def _shared_turns(
    answers: Sequence[list[Message]], prompt: str | None
) -> tuple[list[Message], list[list[Message]]]:
    """The turns that both begin with, and what each goes on with.

    A prompt beside them says what a turn of them says, or it is the turn before them.
    """
    chosen, rejected = answers
    pairs = zip(_bare(chosen), _bare(rejected), strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if len(chosen) == len(rejected) == shared:
        raise _same_answers()
    asked, rest = chosen[:shared], [answer[shared:] for answer in answers]
    if prompt is None:
        if not asked:
            wanted = "give prompt, or write both as whole conversations"
            raise Unusable("no_prompt", f"chosen and rejected begin with no turn alike; {wanted}")
        return asked, rest
    if not all(rest) or any((turn.content or "").strip() == prompt.strip() for turn in asked):
        return asked, rest
    if any(turn.role != "assistant" for turn in (*asked, rest[0][0], rest[1][0])):
        wanted = "leave it out, or leave those turns out"
        message = f"prompt is not among the turns that chosen and rejected begin with; {wanted}"
        raise Unusable("prompt_differs", message)
    return [Message(role="user", content=prompt), *asked], rest


def _bare(messages: Sequence[Message]) -> list[Message]:
    """Turns as part of a prompt: not trained."""
    return [replace(message, trained=False) for message in messages]


def _pair(
    name: RowFormat,
    prompt: Sequence[Message],
    answers: Sequence[Sequence[Message]],
    keys: Sequence[str],
    tools: tuple[Mapping[str, Any], ...],
    ignored: set[str],
) -> Preference:
    if not prompt:
        raise Unusable("no_prompt", "the prompt has no messages; wanted at least one turn")
    rows = []
    for key, answer in zip(keys, answers, strict=True):
        if not answer:
            raise Unusable("empty_answer", f"{key} says nothing after the prompt")
        try:
            both = [*_bare(prompt), *answer]
            rows.append(conversation(name, both, tools=tools, ignored=set()))
        except Unusable as unusable:
            problem = unusable.problem
            raise Unusable(problem.code, f"{key}: {problem.message}") from unusable
    return _checked(name, rows[0], rows[1], ignored)


def _checked(name: RowFormat, chosen: Row, rejected: Row, ignored: set[str]) -> Preference:
    if said(chosen)[0] == said(rejected)[0]:
        raise _same_answers()
    return Preference(
        format=name, chosen=chosen, rejected=rejected, ignored_keys=tuple(sorted(ignored))
    )


def _same_answers() -> Unusable:
    return Unusable("same_answers", "chosen and rejected are the same, so neither is better")
