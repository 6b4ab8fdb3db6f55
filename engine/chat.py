"""A conversation as token ids and labels, by the model's own chat template.

Only assistant turns are labelled, each up to and including its end token, so that the model learns
to stop. Where a turn begins and ends is not guessed from the tokens: the template is rendered up to
the turn and with it, and both must be prefixes of the whole (or the template marks its turns with
`{% generation %}`). Then the labelled ids are decoded and must give the assistant's text back. What
fails a check is refused with the reason.
"""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix
from unicodedata import normalize

from .example import NOT_TRAINED, ChatTokenizer, Example, RenderProblem
from .rendered import check_nothing_lost, what_was_said
from .row_types import Conversation, Message
from .template import Dialogue, open_dialogue

__all__ = ["NOT_TRAINED", "ChatTokenizer", "Example", "RenderProblem", "render"]

MARKED_TURNS = re.compile(r"\{%-?\s*generation\s*-?%\}")


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
    dialogue, text = open_dialogue(tokenizer, conversation)
    notes = check_nothing_lost(conversation, text)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    rendered = _Rendered(text=text, ids=encoded["input_ids"], offsets=encoded["offset_mapping"])
    if rendered.ids[:2] == [tokenizer.bos_token_id] * 2:
        raise RenderProblem("double_bos", "the row begins with two beginning-of-text tokens")
    if everything:
        return Example(ids=rendered.ids, labels=rendered.ids, notes=notes)
    control = _control_ids(tokenizer)
    labels = [NOT_TRAINED] * len(rendered.ids)
    for turn in _turns(dialogue, conversation, rendered):
        end = _end_token(turn, rendered, control)
        _prove(tokenizer, turn, rendered, end)
        labels[turn.start : end + 1] = rendered.ids[turn.start : end + 1]
    return Example(ids=rendered.ids, labels=labels, notes=notes)


@lru_cache(maxsize=4)
def _control_ids(tokenizer: ChatTokenizer) -> frozenset[int]:
    """Ids of control tokens; kept, since the tokenizer makes its tables anew at each question."""
    return frozenset({*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder})


def _turns(dialogue: Dialogue, conversation: Conversation, rendered: _Rendered) -> list[_Turn]:
    if MARKED_TURNS.search(str(dialogue.tokenizer.chat_template)):
        return _marked_turns(dialogue, conversation, rendered)
    trained = [i for i, message in enumerate(conversation.messages) if message.trained]
    return [_turn_by_prefix(dialogue, conversation, rendered, i) for i in trained]


def _turn_by_prefix(
    dialogue: Dialogue, conversation: Conversation, rendered: _Rendered, i: int
) -> _Turn:
    """Turn i, from the text before it (with the assistant's header) and the text with it."""
    if i == 0:
        reason = "the first turn is the assistant's, so no prompt precedes it; give it weight 0"
        raise RenderProblem("assistant_first", reason)
    is_last = i + 1 == len(conversation.messages)
    before = dialogue.text(i, prompt=True)
    upto = _without_text_end(rendered.text if is_last else dialogue.text(i + 1), dialogue.tokenizer)
    for part in (before, upto):
        _check_prefix(part, rendered.text, i)
    # Offsets of white space may be trimmed to nothing at its end, so compare ends with the start.
    start = bisect_right(rendered.offsets, len(before), key=lambda span: span[1])
    stop = bisect_left(rendered.offsets, len(upto), key=lambda span: span[0])
    message = conversation.messages[i]
    return _Turn(message=message, start=start, stop=stop, begins=len(before))


def _without_text_end(text: str, tokenizer: ChatTokenizer) -> str:
    """Text up to a turn, without the end of all text that some templates put behind the end of
    the last turn."""
    end = tokenizer.eos_token
    shorter = text.rstrip().removesuffix(end) if end else text
    turn_ends = tuple(token for token in _control_texts(tokenizer) if token != end)
    return shorter if shorter.rstrip().endswith(turn_ends) else text


@lru_cache(maxsize=4)
def _control_texts(tokenizer: ChatTokenizer) -> frozenset[str]:
    """The control tokens as text; kept as `_control_ids` are."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values())
    return frozenset({*tokenizer.all_special_tokens, *added} - {""})


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
    dialogue: Dialogue, conversation: Conversation, rendered: _Rendered
) -> list[_Turn]:
    """The trained turns, from the template's own `{% generation %}` marks."""
    ids, marks = dialogue.marked()
    assert ids == rendered.ids, "one template, one tokenizer, two results"
    edges = [0, *marks, 0]
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


def _end_token(turn: _Turn, rendered: _Rendered, control: frozenset[int]) -> int:
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
    for spellings in what_was_said(turn.message):
        if not any(normalize("NFC", text) in decoded for text in spellings):
            raise RenderProblem(*_unequal(decoded, spellings[0]))


def _unequal(decoded: str, wanted: str) -> tuple[str, str]:
    if decoded.endswith(wanted):
        reason = "the assistant's text begins with characters that merge with the template's into "
        return "merged_edge", f"{reason}one token ({decoded[:10]!r}); strip white space there"
    reason = f"the labelled tokens decode to {decoded[:60]!r}; wanted {wanted[:60]!r}"
    return "mask_not_proven", reason
