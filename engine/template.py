"""A conversation and the model's chat template: the text of its first turns, as many as wanted."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .example import ChatTokenizer, RenderProblem
from .model_files import ModelError
from .row_types import Conversation

RENDER_SECONDS = 30.0  # for one conversation; a thousandth of that is usual


class _TooLong(Exception):
    """A template had its time."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise _TooLong in the block after so much of the processor's time; in threads other than the
    first it cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation in the form that the template takes."""

    tokenizer: ChatTokenizer
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None

    def text(self, num_messages: int | None = None, *, prompt: bool = False) -> str:
        """The first messages, or all; with `prompt`, also the header of the assistant's answer.

        RenderProblem with the template's reason when it does not accept them.
        """
        rendered = self._apply(num_messages, tokenize=False, add_generation_prompt=prompt)
        assert isinstance(rendered, str)
        return rendered

    def marked(self) -> tuple[list[int], list[int]]:
        """Ids of all messages, and 1 for those that the template marks as the assistant's."""
        how = {"return_dict": True, "return_assistant_tokens_mask": True}
        made = self._apply(None, tokenize=True, **how)
        return made["input_ids"], made["assistant_masks"]

    def _apply(self, num_messages: int | None, **how: Any) -> Any:
        messages = self.messages[:num_messages]
        try:
            with _within(RENDER_SECONDS):
                return self.tokenizer.apply_chat_template(messages, tools=self.tools, **how)
        except _TooLong as error:
            raise ModelError(
                f"the model's chat template is not done with a conversation after "
                f"{RENDER_SECONDS:g} s: does it loop without end? Take the template of the "
                "model's origin"
            ) from error
        except Exception as error:  # a template is code, and may raise whatever it likes
            said = str(error) or type(error).__name__
            message = f"the model's chat template does not accept the conversation: {said:.500}"
            raise RenderProblem("template_error", message) from error


def open_dialogue(tokenizer: ChatTokenizer, conversation: Conversation) -> tuple[Dialogue, str]:
    """The conversation in the first form that the template accepts, and all of its text.

    Templates differ in how they want calls of tools: the words beside them null or empty, the
    arguments an object or a string of JSON. RenderProblem of the first form when none will do.
    """
    tools = [dict(tool) for tool in conversation.tools] or None
    first: RenderProblem | None = None
    for messages in _forms([message.to_dict() for message in conversation.messages]):
        dialogue = Dialogue(tokenizer, messages, tools)
        try:
            text = dialogue.text()
        except RenderProblem as problem:
            first = first or problem
            continue
        if not _writes_null(dialogue, text):
            return dialogue, text
    assert first is not None, "an empty text is never written as null"
    raise first


def _forms(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    yield messages
    if any(message["content"] is None for message in messages):
        messages = [message | {"content": message["content"] or ""} for message in messages]
        yield messages
    if any("tool_calls" in message for message in messages):
        yield [_with_arguments_as_text(message) for message in messages]


def _with_arguments_as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [call["function"] for call in calls]
    texts = [json.dumps(function["arguments"], ensure_ascii=False) for function in functions]
    made = [
        call | {"function": call["function"] | {"arguments": text}}
        for call, text in zip(calls, texts, strict=True)
    ]
    return message | {"tool_calls": made}


def _writes_null(dialogue: Dialogue, text: str) -> bool:
    """Whether the template writes "None" where a turn has no words."""
    if all(message["content"] is not None for message in dialogue.messages):
        return False
    empty = [message | {"content": message["content"] or ""} for message in dialogue.messages]
    try:
        return text.count("None") > Dialogue(
            dialogue.tokenizer, empty, dialogue.tools
        ).text().count("None")
    except RenderProblem:  # it takes null alone
        return False
