"""Which tokens of a row are trained, for every format and every choice of `train_on`."""

import json
from typing import Any

import pytest
from tokenizers import processors

from headrace.engine.chat import NOT_TRAINED, Example, RenderProblem
from headrace.engine.labels import render_row
from headrace.engine.row_types import Conversation, PlainText
from headrace.engine.rows import parse_row
from tiny import make_tokenizer

CHATS = make_tokenizer()
PLAIN = make_tokenizer()
PLAIN.chat_template = None
TURNS = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Uno."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Dos."},
]


def rendered(tokenizer: Any, train_on: Any = "assistant", **row: Any) -> Example:
    parsed = parse_row(json.dumps(row).encode())
    assert isinstance(parsed, Conversation | PlainText), parsed
    return render_row(tokenizer, parsed, train_on=train_on)


def problem(tokenizer: Any, train_on: Any = "assistant", **row: Any) -> RenderProblem:
    with pytest.raises(RenderProblem) as caught:
        rendered(tokenizer, train_on, **row)
    return caught.value


def trained(example: Example) -> str:
    return str(PLAIN.decode([label for label in example.labels if label != NOT_TRAINED]))


@pytest.mark.parametrize(
    ("train_on", "said"),
    [("assistant", "Uno.<|im_end|>Dos.<|im_end|>"), ("last_assistant", "Dos.<|im_end|>")],
)
def test_the_turns_that_were_asked_for_are_trained(train_on: str, said: str) -> None:
    assert trained(rendered(CHATS, train_on, messages=TURNS)) == said


def test_all_trains_every_token_that_is_rendered() -> None:
    example = rendered(CHATS, "all", messages=TURNS)
    assert example.labels == example.ids == CHATS.apply_chat_template(TURNS, return_dict=False)


def test_weights_that_contradict_train_on_are_refused() -> None:
    silent = [*TURNS[:3], {**TURNS[3], "weight": 0}]
    assert problem(CHATS, "last_assistant", messages=silent).code == "nothing_trained"
    assert problem(CHATS, "all", messages=silent).code == "weight_with_all"


def test_the_last_turn_alone_trains_under_a_template_that_rewrites_history() -> None:
    forgets = make_tokenizer()
    forgets.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    thinks = {"role": "assistant", "content": "<think>hm</think>Uno."}
    row = [TURNS[0], {**TURNS[1], "content": "Uno."}, TURNS[2], thinks]
    assert trained(rendered(forgets, "last_assistant", messages=row)).endswith("Uno.<|im_end|>")


def test_a_completion_is_the_assistants_turn_where_there_is_a_template() -> None:
    example = rendered(CHATS, prompt="One?", completion="Uno.")
    assert example == rendered(CHATS, messages=TURNS[:2])


def test_prompt_and_completion_are_joined_as_they_are_without_a_template() -> None:
    example = rendered(PLAIN, prompt="The sky is", completion=" blue.")
    assert example.ids == [*PLAIN("The sky is blue.")["input_ids"], PLAIN.eos_token_id]
    assert trained(example) == " blue.<|im_end|>"
    assert rendered(PLAIN, "all", prompt="The sky is", completion=" blue.").labels == example.ids


def test_a_completion_that_merges_with_its_prompt_is_refused() -> None:
    assert len(PLAIN("he")["input_ids"]) == 1
    found = problem(PLAIN, prompt="h", completion="e")
    assert found.code == "merged_edge" and "begin the completion with a space" in str(found)


@pytest.mark.parametrize("tokenizer", [PLAIN, CHATS])
def test_text_is_trained_whole_and_ends_once(tokenizer: Any) -> None:
    example = rendered(tokenizer, text="Water runs.")
    assert example.labels == example.ids == [*PLAIN("Water runs.")["input_ids"], PLAIN.eos_token_id]
    assert rendered(tokenizer, text="Water runs.<|im_end|>") == example


def test_plain_text_begins_as_the_tokenizer_begins_texts_and_only_once() -> None:

    begins = make_tokenizer()
    begins.chat_template = None
    begin = begins.convert_tokens_to_ids("<|im_start|>")
    begins.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", begin)]
    )
    example = rendered(begins, text="Water.")
    assert example.ids[0] == begin and example.ids.count(begin) == 1
    assert rendered(begins, text="<|im_start|>Water.") == example
    assert rendered(begins, prompt="Wa", completion=" ter").labels[0] == NOT_TRAINED


def test_the_end_that_a_tokenizer_sets_itself_is_trained_and_not_doubled() -> None:
    ends = make_tokenizer()
    ends.chat_template = None
    ends.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", ends.eos_token_id)]
    )
    given = {"prompt": "The sky is", "completion": " blue."}
    assert rendered(ends, **given) == rendered(PLAIN, **given)


def test_rows_with_roles_need_a_template() -> None:
    found = problem(PLAIN, instruction="One?", output="Uno.")
    assert found.code == "no_template" and "alpaca" in str(found)


def test_plain_text_needs_an_end_token() -> None:
    endless = make_tokenizer()
    endless.eos_token = None
    assert problem(endless, text="Water.").code == "no_end_token"
