"""A conversation as token ids and labels, by the model's own chat template.

Only assistant turns are labelled, each up to and including its end token, so that the model learns
to stop. Where a turn begins and ends is not guessed from the tokens: the template is rendered up to
the turn and with it, and both must be prefixes of the whole (or the template marks its turns with
`{% generation %}`). Then the labelled ids are decoded and must give the assistant's text back. What
fails a check is refused with the reason.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Protocol
from unicodedata import normalize

from jinja2 import TemplateError

from .row_types import Conversation, Message

NOT_TRAINED = -100
MARKED_TURNS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTokenizer(Protocol):
    """What is needed of a transformers tokenizer; it must be a fast one, which knows offsets."""

    chat_template: Any
    bos_token: str | None
    bos_token_id: int | None
    eos_token_id: int | None
    all_special_ids: list[int]
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages to text, or to ids with a mask of the marked turns."""

    def __call__(self, text: str, **kwargs: Any) -> Any:
        """Encode text to `input_ids` and `offset_mapping`."""

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        """The text of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Token ids of a whole conversation; `labels` equal them where trained, else are -100."""

    ids: list[int]
    labels: list[int]


class RenderProblem(ValueError):
    """A conversation that the model's template or tokenizer cannot carry unchanged."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """A conversation as text and as tokens; `offsets` are character ranges of the tokens."""

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A trained turn: its tokens from `start` to before `stop`; the character where it begins.

    `begins` is None when the template's marks gave the tokens.
    """

    message: Message
    start: int
    stop: int
    begins: int | None = None


def render(
    tokenizer: ChatTokenizer, conversation: Conversation, *, everything: bool = False
) -> Example:
    """Render, tokenize and label one conversation. No special token is added to the template's.

    RenderProblem when the template fails, rewrites or loses a turn, ends a turn without a control
    token, or when the labelled ids do not decode to the assistant's text. With `everything` each
    token is labelled, whoever said it.
    """
    text = _apply(tokenizer, conversation, len(conversation.messages))
    _check_nothing_lost(conversation, text)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    rendered = _Rendered(text=text, ids=encoded["input_ids"], offsets=encoded["offset_mapping"])
    if rendered.ids[:2] == [tokenizer.bos_token_id] * 2:
        raise RenderProblem("double_bos", "the row begins with two beginning-of-text tokens")
    if everything:
        return Example(ids=rendered.ids, labels=rendered.ids)
    control = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    labels = [NOT_TRAINED] * len(rendered.ids)
    for turn in _turns(tokenizer, conversation, rendered):
        end = _end_token(turn, rendered, control)
        _prove(tokenizer, turn, rendered, end)
        labels[turn.start : end + 1] = rendered.ids[turn.start : end + 1]
    return Example(ids=rendered.ids, labels=labels)


def render_prompt(tokenizer: ChatTokenizer, conversation: Conversation) -> str:
    """The text of a conversation and the header of the answer to come. RenderProblem."""
    return _apply(tokenizer, conversation, len(conversation.messages), prompt=True)


def _apply(
    tokenizer: ChatTokenizer, conversation: Conversation, num_messages: int, *, prompt: bool = False
) -> str:
    """The text of the first messages; with `prompt`, also the header of the assistant's answer."""
    rendered = _call_template(
        tokenizer, conversation, num_messages, tokenize=False, add_generation_prompt=prompt
    )
    assert isinstance(rendered, str)
    return rendered


def _call_template(
    tokenizer: ChatTokenizer, conversation: Conversation, num_messages: int, **how: Any
) -> Any:
    messages = [message.to_dict() for message in conversation.messages[:num_messages]]
    tools = [dict(tool) for tool in conversation.tools] or None
    try:
        return tokenizer.apply_chat_template(messages, tools=tools, **how)
    except (TemplateError, TypeError, ValueError) as error:
        message = f"the model's chat template does not accept the conversation: {error}"
        raise RenderProblem("template_error", message) from error


def _check_nothing_lost(conversation: Conversation, text: str) -> None:
    """Every turn and every tool must be found in the rendered text."""
    for i, message in enumerate(conversation.messages):
        content = (message.content or "").strip()
        quoted = json.dumps(content, ensure_ascii=False)[1:-1]  # some templates quote tool results
        if content not in text and not (message.role == "tool" and quoted in text):
            reason = f"the model's chat template loses or rewrites messages[{i}] ({message.role})"
            raise RenderProblem("turn_lost", reason)
    for tool in conversation.tools:
        name = str(tool.get("function", tool).get("name", ""))
        if name not in text:
            reason = f"the model's chat template does not show the tool {name!r}; leave tools out"
            raise RenderProblem("tools_lost", reason)


def _turns(
    tokenizer: ChatTokenizer, conversation: Conversation, rendered: _Rendered
) -> list[_Turn]:
    if MARKED_TURNS.search(str(tokenizer.chat_template)):
        return _marked_turns(tokenizer, conversation, rendered)
    trained = [i for i, message in enumerate(conversation.messages) if message.trained]
    return [_turn_by_prefix(tokenizer, conversation, rendered, i) for i in trained]


def _turn_by_prefix(
    tokenizer: ChatTokenizer, conversation: Conversation, rendered: _Rendered, i: int
) -> _Turn:
    """Turn i, from the text before it (with the assistant's header) and the text with it."""
    if i == 0:
        reason = "the first turn is the assistant's, so no prompt precedes it; give it weight 0"
        raise RenderProblem("assistant_first", reason)
    before = _apply(tokenizer, conversation, i, prompt=True)
    upto = _apply(tokenizer, conversation, i + 1)
    for part in (before, upto):
        _check_prefix(part, rendered.text, i)
    # Offsets of white space may be trimmed to nothing at its end, so compare ends with the start.
    start = bisect_right(rendered.offsets, len(before), key=lambda span: span[1])
    stop = bisect_left(rendered.offsets, len(upto), key=lambda span: span[0])
    message = conversation.messages[i]
    return _Turn(message=message, start=start, stop=stop, begins=len(before))


def _check_prefix(part: str, text: str, i: int) -> None:
    if text.startswith(part):
        return
    same = len(commonprefix([part, text]))
    raise RenderProblem(
        "template_rewrites_history",
        f"the chat template renders messages[{i}] differently once the conversation goes on: "
        f"{part[same : same + 30]!r} became {text[same : same + 30]!r}; "
        "split the row so that it ends with its only trained turn",
    )


def _marked_turns(
    tokenizer: ChatTokenizer, conversation: Conversation, rendered: _Rendered
) -> list[_Turn]:
    """The trained turns, from the template's own `{% generation %}` marks."""
    marked = _call_template(
        tokenizer,
        conversation,
        len(conversation.messages),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert marked["input_ids"] == rendered.ids, "one template, one tokenizer, two results"
    edges = [0, *marked["assistant_masks"], 0]
    starts = [i for i in range(len(edges) - 1) if edges[i : i + 2] == [0, 1]]
    stops = [i for i in range(len(edges) - 1) if edges[i : i + 2] == [1, 0]]
    turns = [message for message in conversation.messages if message.role == "assistant"]
    if len(turns) != len(starts):
        reason = f"the chat template marks {len(starts)} assistant turns of {len(turns)}"
        raise RenderProblem("marks_missing", reason)
    return [
        _Turn(message=message, start=start, stop=stop)
        for message, start, stop in zip(turns, starts, stops, strict=True)
        if message.trained
    ]


def _end_token(turn: _Turn, rendered: _Rendered, control: set[int]) -> int:
    """Index of the control token that closes the turn, white space after it aside."""
    last = turn.stop - 1
    while last > turn.start and not rendered.text[slice(*rendered.offsets[last])].strip():
        last -= 1
    after = [turn.stop] if turn.begins is None else []  # some marks hold the text alone
    for index in (last, *after):
        if index < len(rendered.ids) and rendered.ids[index] in control:
            return index
    raise RenderProblem(
        "no_end_token",
        "the chat template ends the assistant's turn without a control token, "
        "so that the model would never learn to stop",
    )


def _prove(tokenizer: ChatTokenizer, turn: _Turn, rendered: _Rendered, end: int) -> None:
    """The labelled ids, decoded, must be the turn's text and hold all that the assistant said."""
    decoded = tokenizer.decode(
        rendered.ids[turn.start : end],
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    decoded = normalize("NFC", decoded)
    if turn.begins is not None:
        wanted = normalize("NFC", rendered.text[turn.begins : rendered.offsets[end][0]])
        if wanted not in (decoded, " " + decoded):  # SentencePiece drops a first space
            raise RenderProblem(*_unequal(decoded, wanted))
    said = [(turn.message.content or "").strip()]
    said += [call["function"]["name"] for call in turn.message.tool_calls]
    for text in said:
        if normalize("NFC", text) not in decoded:
            raise RenderProblem(*_unequal(decoded, text))


def _unequal(decoded: str, wanted: str) -> tuple[str, str]:
    if decoded.endswith(wanted):
        reason = "the assistant's text begins with characters that merge with the template's into "
        return "merged_edge", f"{reason}one token ({decoded[:10]!r}); strip white space there"
    reason = f"the labelled tokens decode to {decoded[:60]!r}; wanted {wanted[:60]!r}"
    return "mask_not_proven", reason
