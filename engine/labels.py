"""A row of any format as token ids and labels: what is rendered how, and what of it is trained.

Prompt and completion become a user's and an assistant's turn where the tokenizer has a chat
template: the trained model is asked through that template, so it should learn in it. (Trainers
differ here: mlx-lm does so too, TRL joins strings as they are.) Without a template the two are
joined as plain text. A `text` row is always plain text. Plain text begins as the tokenizer begins
texts and ends with its end-of-text token.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal
from unicodedata import normalize

from .chat import render
from .example import NOT_TRAINED, ChatTokenizer, Example, RenderProblem
from .row_types import AnyRow, Conversation, Message, PlainText, Preference, Row
from .template import Dialogue

TrainOn = Literal["assistant", "last_assistant", "each_assistant", "all"]


def render_rows(
    tokenizer: ChatTokenizer, row: AnyRow, *, train_on: TrainOn = "assistant"
) -> tuple[Example, ...]:
    """Tokens and labels of a row: one example, or two of a preference, the chosen one first.

    With `each_assistant` there is one for each trained turn of a conversation, which ends with that
    turn, as the template has it when the model is used. RenderProblem when the row cannot be
    carried unchanged; of a preference only answers are trained.
    """
    if isinstance(row, Conversation) and train_on == "each_assistant":
        return tuple(render_row(tokenizer, part) for part in _up_to_each_turn(row))
    if not isinstance(row, Preference):
        return (render_row(tokenizer, row, train_on=train_on),)
    if train_on == "each_assistant":
        said = "train_on is each_assistant, but a preference is one pair of answers; leave it out"
        raise RenderProblem("each_of_a_preference", said)
    if train_on == "all":
        said = "train_on is all, but prompts say nothing of which answer is better; leave it out"
        raise RenderProblem("all_of_a_preference", said)
    examples = []
    for name, answer in row.answers:
        try:
            examples.append(render_row(tokenizer, answer, train_on=train_on))
        except RenderProblem as problem:
            raise RenderProblem(problem.code, f"{name}: {problem}") from problem
    if examples[0] == examples[1]:
        said = "chosen and rejected are the same in tokens, so neither is better"
        raise RenderProblem("same_answers", said)
    return tuple(examples)


def render_row(tokenizer: ChatTokenizer, row: Row, *, train_on: TrainOn = "assistant") -> Example:
    """Tokens and labels of a row. RenderProblem when it cannot be carried unchanged.

    `assistant` trains the assistant's turns (completions, texts), `last_assistant` only the last of
    a conversation, `all` every token, prompts and the template's own words included.
    `each_assistant` is as `assistant` here: `render_rows` has parted the turns.
    """
    if isinstance(row, PlainText) and row.prompt is not None and tokenizer.chat_template:
        row = _as_turns(row, row.prompt)
    if isinstance(row, PlainText):
        return _render_plain(tokenizer, row, everything=train_on == "all")
    if not tokenizer.chat_template:
        raise RenderProblem(
            "no_template",
            f"the model has no chat template, so {row.format} rows have no form it knows; "
            "write them as prompt and completion, or as text",
        )
    return render(tokenizer, _chosen(row, train_on), everything=train_on == "all")


def prompt_ids(tokenizer: ChatTokenizer, text: str) -> list[int]:
    """Tokens of a prompt that the model is to go on from, in the form that rows of prompts have.

    RenderProblem when the model's template does not take it.
    """
    if tokenizer.chat_template:
        asked = Message(role="user", content=text)
        rendered = Dialogue(tokenizer, [asked.to_dict()], None).text(prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    begun = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    ids = list(tokenizer(text, add_special_tokens=not begun)["input_ids"])
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def _as_turns(row: PlainText, prompt: str) -> Conversation:
    asked = Message(role="user", content=prompt)
    answer = Message(role="assistant", content=row.completion, trained=True)
    return Conversation(format=row.format, messages=(asked, answer))


def _up_to_each_turn(row: Conversation) -> Iterator[Conversation]:
    """The conversation up to each of its trained turns, which alone is trained."""
    read = [replace(message, trained=False) for message in row.messages]
    for i, message in enumerate(row.messages):
        if message.trained:
            yield replace(row, messages=(*read[:i], message))


def _chosen(row: Conversation, train_on: TrainOn) -> Conversation:
    """The conversation with the turns marked that are trained."""
    turns = [i for i, message in enumerate(row.messages) if message.role == "assistant"]
    if train_on == "last_assistant":
        if not row.messages[turns[-1]].trained:
            said = "the last assistant turn has weight 0, and train_on is last_assistant"
            raise RenderProblem("nothing_trained", said)
        messages = [replace(message, trained=False) for message in row.messages]
        messages[turns[-1]] = row.messages[turns[-1]]
        return replace(row, messages=tuple(messages))
    silent = [i for i in turns if not row.messages[i].trained]
    if train_on == "all" and silent and row.format != "prompt/completion":
        said = f"messages[{silent[0]}] has weight 0, but train_on is all; take one of them back"
        raise RenderProblem("weight_with_all", said)
    return row


def _render_plain(tokenizer: ChatTokenizer, row: PlainText, *, everything: bool) -> Example:
    prompt = row.prompt or ""
    text = prompt + row.completion
    end = tokenizer.eos_token_id
    if end is None:
        said = "the tokenizer has no end-of-text token, so that the model would never learn to stop"
        raise RenderProblem("no_end_token", said)
    begun = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    encoded = tokenizer(text, add_special_tokens=not begun, return_offsets_mapping=True)
    ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
    trained = [stop > len(prompt) for _, stop in offsets]
    _prove(tokenizer, row, [token for token, flag in zip(ids, trained, strict=True) if flag])
    if ids[-1] != end:
        ids, trained = [*ids, end], [*trained, True]
    trained[-1] = True
    if everything or row.prompt is None:
        trained = [True] * len(ids)
    labels = [token if flag else NOT_TRAINED for token, flag in zip(ids, trained, strict=True)]
    return Example(ids=ids, labels=labels)


def _prove(tokenizer: ChatTokenizer, row: PlainText, ids: list[int]) -> None:
    """The trained ids, decoded, must be the completion, with nothing of the prompt."""
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    decoded, wanted = normalize("NFC", decoded), normalize("NFC", row.completion)
    if wanted in (decoded, " " + decoded) or decoded == " " + wanted:
        return
    if row.prompt and decoded.endswith(wanted):
        said = f"prompt and completion merge into one token where they meet ({decoded[:10]!r}); "
        raise RenderProblem("merged_edge", said + "begin the completion with a space or a new line")
    said = f"the trained tokens decode to {decoded[:60]!r}; wanted {wanted[:60]!r}"
    raise RenderProblem("mask_not_proven", said)
