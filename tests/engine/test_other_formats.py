"""Rows of every format mean what their makers meant, or are refused with the reason."""

import json
from typing import Any

import pytest

from headrace.engine.row_types import Conversation, PlainText, RowProblem
from headrace.engine.rows import parse_row


def told(**row: Any) -> list[tuple[str, str | None, bool]]:
    """The turns: role, content and whether it is trained."""
    return [(turn.role, turn.content, turn.trained) for turn in conversation(**row).messages]


def conversation(**row: Any) -> Conversation:
    parsed = parse_row(json.dumps(row).encode())
    assert isinstance(parsed, Conversation), parsed
    return parsed


def plain(**row: Any) -> PlainText:
    parsed = parse_row(json.dumps(row).encode())
    assert isinstance(parsed, PlainText), parsed
    return parsed


def turn(said_by: str, value: Any, **rest: Any) -> dict[str, Any]:
    return {"from": said_by, "value": value, **rest}


def test_prompt_and_completion_keep_their_white_space() -> None:
    row = plain(prompt="The sky is", completion=" blue.\n", id=3)
    assert (row.format, row.prompt, row.completion) == (
        "prompt/completion", "The sky is", " blue.\n")  # fmt: skip
    assert row.ignored_keys == ("id",)


def test_an_empty_prompt_is_one() -> None:
    assert plain(prompt="", completion="Once upon a time").prompt == ""


def test_prompt_and_completion_as_messages_train_the_completion_alone() -> None:
    first = {"role": "assistant", "content": "Hello"}
    prompt = [{"role": "user", "content": "Hi"}, first, {"role": "user", "content": "Well?"}]
    assert told(prompt=prompt, completion=[{"role": "assistant", "content": "Yes."}]) == [
        ("user", "Hi", False),
        ("assistant", "Hello", False),
        ("user", "Well?", False),
        ("assistant", "Yes.", True),
    ]


def test_text_is_trained_as_a_whole() -> None:
    row = plain(text="Water runs.")
    assert (row.format, row.prompt, row.completion) == ("text", None, "Water runs.")


def test_an_instruction_and_its_input_are_one_question() -> None:
    row = {"instruction": "Sort.", "input": "b a", "output": "a b"}
    assert told(**row) == [("user", "Sort.\nb a", False), ("assistant", "a b", True)]
    assert told(**row | {"input": ""})[0] == ("user", "Sort.", False)


def test_system_and_history_come_before_an_instruction() -> None:
    history = [["One?", "1"], ["Two?", "2"]]
    row = {"instruction": "Three?", "output": "3", "system": "Count.", "history": history}
    assert told(**row) == [
        ("system", "Count.", False),
        ("user", "One?", False),
        ("assistant", "1", True),
        ("user", "Two?", False),
        ("assistant", "2", True),
        ("user", "Three?", False),
        ("assistant", "3", True),
    ]


def test_alpaca_rows_that_bring_their_rendered_text_are_alpaca() -> None:
    row = conversation(instruction="Sort.", output="a b", text="Below is an instruction")
    assert row.format == "alpaca" and row.ignored_keys == ("text",)


@pytest.mark.parametrize("said_by", ["gpt", "assistant", "chatgpt", "bing", "bard", "model", "GPT"])
def test_the_assistant_of_sharegpt_has_many_names(said_by: str) -> None:
    row = {"conversations": [turn("human", "Hi"), turn(said_by, "Hello")]}
    assert told(**row) == [("user", "Hi", False), ("assistant", "Hello", True)]


def test_sharegpt_takes_a_system_key_weights_and_turns_with_roles() -> None:
    turns = [turn("user", "Hi"), turn("gpt", "Hello", weight=0), turn("human", "Well?")]
    turns += [{"role": "assistant", "content": "Yes."}]
    assert told(conversations=turns, system="Be short.", id="x1") == [
        ("system", "Be short.", False),
        ("user", "Hi", False),
        ("assistant", "Hello", False),
        ("user", "Well?", False),
        ("assistant", "Yes.", True),
    ]


def test_function_calls_of_sharegpt_become_tool_calls() -> None:
    called = {"name": "depth", "arguments": {"gate": 3}}
    turns = [turn("human", "How deep?"), turn("function_call", json.dumps(called))]
    turns += [turn("observation", '{"metres": 2}'), turn("gpt", "Two metres.")]
    row = conversation(conversations=turns, tools=json.dumps([{"name": "depth"}]))
    assert [message.role for message in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.messages[1].tool_calls[0]["function"] == called and row.messages[1].trained
    assert row.tools == ({"name": "depth"},)


def test_keys_that_are_null_are_not_there() -> None:
    row = {"messages": None, "prompt": None, "completion": None, "text": "Water."}
    assert plain(**row).format == "text"


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [
        ({"prompt": "a", "completion": " "}, "empty_answer", "completion is empty"),
        ({"prompt": ["a"], "completion": "b"}, "bad_content", "prompt is a list"),
        ({"prompt": [], "completion": []}, "no_assistant", "nothing to learn"),
        ({"text": 7}, "bad_content", "text is a number"),
        ({"text": ""}, "empty_answer", "text is empty"),
        ({"instruction": "a", "output": ""}, "empty_answer", "output is empty"),
        ({"instruction": ["a"], "output": "b"}, "bad_content", "instruction is a list"),
        ({"instruction": "a", "output": "b", "history": [["c"]]}, "bad_content", "history[0]"),
        ({"instruction": "a", "output": "b", "history": "c"}, "bad_content", "history is a string"),
        ({"conversations": {}}, "bad_messages", "an object"),
        ({"conversations": ["a"]}, "bad_message", "conversations[0] is a string"),
        ({"conversations": [turn("narrator", "a")]}, "unknown_role", "'narrator'; wanted system"),
        ({"conversations": [turn("human", 3)]}, "bad_content", "conversations[0].value"),
        ({"conversations": [turn("function_call", "depth(3)")]}, "bad_arguments", "not valid JSON"),
        ({"conversations": [turn("function_call", "3")]}, "bad_tool_calls", "function.name"),
        ({"conversations": [turn("human", "a")]}, "no_assistant", "nothing to learn"),
        ({"conversations": [turn("system", "a")], "system": "b"}, "two_systems", "keep one"),
        ({"conversations": [turn("gpt", "a")], "tools": "{"}, "bad_arguments", "tools"),
    ],
)
def test_a_row_of_no_use_says_why(row: dict[str, Any], code: str, said: str) -> None:
    problem = parse_row(json.dumps(row).encode())
    assert isinstance(problem, RowProblem), problem
    assert problem.code == code and said in problem.message
