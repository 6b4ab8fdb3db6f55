"""A row is a conversation or a reason, and nothing in it is lost without a word."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.row_types import (
    MAX_LINE_BYTES,
    AnyRow,
    Conversation,
    PlainText,
    Preference,
    RowProblem,
)
from headrace.engine.rows import RowReader, parse_row

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def parse(*messages: Any, **rest: Any) -> AnyRow | RowProblem:
    return parse_row(json.dumps({"messages": list(messages), **rest}).encode())


def conversation(*messages: Any, **rest: Any) -> Conversation:
    result = parse(*messages, **rest)
    assert isinstance(result, Conversation), result
    return result


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "depth", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}


def test_roles_and_contents_are_kept_in_order() -> None:
    roles = ["system", "developer", "user", "assistant", "tool", "assistant"]
    row = conversation(*({"role": role, "content": f"{role}?"} for role in roles))
    assert [message.role for message in row.messages] == roles
    assert [message.content for message in row.messages] == [f"{role}?" for role in roles]


def test_every_assistant_turn_trains_unless_its_weight_is_0() -> None:
    row = conversation(USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}, USER, ANSWER)
    assert [message.trained for message in row.messages] == [False, False, False, True, False, True]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    assert (
        conversation({"role": "user", "content": parts}, ANSWER).messages[0].content == "Hi there"
    )


def test_strings_that_look_like_dates_or_numbers_stay_strings() -> None:
    row = conversation({"role": "user", "content": "2024-01-02"}, {**ANSWER, "content": "7.0"})
    assert [message.content for message in row.messages] == ["2024-01-02", "7.0"]


@pytest.mark.parametrize("arguments", [{"gate": 3}, '{"gate": 3}'])
def test_arguments_of_tool_calls_become_objects(arguments: Any) -> None:
    made = conversation(USER, call(arguments)).messages[1].to_dict()
    assert made["tool_calls"][0]["function"]["arguments"] == {"gate": 3}
    assert made["content"] is None


def test_a_byte_order_mark_is_no_part_of_the_row() -> None:
    line = b"\xef\xbb\xbf" + json.dumps({"messages": [USER, ANSWER]}).encode()
    assert parse_row(line) == conversation(USER, ANSWER)


def test_an_endless_line_is_refused_before_it_is_parsed() -> None:
    problem = parse_row(b" " * (MAX_LINE_BYTES + 1))
    assert isinstance(problem, RowProblem) and problem.code == "line_too_long"


def test_keys_beyond_the_format_are_named() -> None:
    row = conversation({**USER, "mood": "calm", "refusal": None}, ANSWER, id=7, source=None)
    assert row.ignored_keys == ("id", "messages[].mood")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (b'{"messages": [', "invalid_json", "column"),
        (b'{"messages": "\xff"}', "invalid_json", "JSON"),
        (b"[{}]x", "invalid_json", "one object a line"),
        (b"[]", "not_an_object", "a list"),
        (b"{}", "unknown_format", "keys seen: none"),
        (b'{"mesages": []}', "unknown_format", "keys seen: mesages"),
        (b'{"question": "a", "answer": "b"}', "unknown_format", "alpaca (instruction, output)"),
        (b'{"question": "a", "answer": "b"}', "unknown_format", "as columns: prompt=question"),
        (b'{"text": null}', "unknown_format", "keys seen: text"),
        (b'{"prompt": "a", "completion": "b", "label": false}', "unsupported_format", "label"),
        (b'{"messages": null, "x": 1}', "unknown_format", "keys seen: messages, x"),
        (b'{"messages": {}}', "bad_messages", "an object"),
        (b'{"messages": []}', "no_assistant", "assistant"),
        (b'{"messages": [7]}', "bad_message", r"messages[0] is a number"),
    ],
)
def test_a_row_of_the_wrong_shape_says_so(line: bytes, code: str, said: str) -> None:
    problem = parse_row(line)
    assert isinstance(problem, RowProblem)
    assert problem.code == code and said in problem.message


@pytest.mark.parametrize(
    ("messages", "code", "said"),
    [
        ([USER], "no_assistant", "nothing to learn"),
        ([USER, {**ANSWER, "weight": 0}], "nothing_trained", "weight 0"),
        ([USER, {**ANSWER, "weight": 0.5}], "bad_weight", "0.5"),
        ([USER, {**ANSWER, "weight": True}], "bad_weight", "True"),
        ([{**USER, "weight": 1}, ANSWER], "bad_weight", "messages[0]"),
        ([{"role": "human", "content": "Hi"}, ANSWER], "unknown_role", "'human'"),
        ([{"role": ["user"], "content": "Hi"}, ANSWER], "unknown_role", "['user']"),
        ([{"content": "Hi"}, ANSWER], "unknown_role", "None"),
        ([USER, {"role": "assistant", "content": 7}], "bad_content", "a number"),
        ([USER, {"role": "assistant"}], "bad_content", "null"),
        ([USER, {"role": "assistant", "content": " \n"}], "empty_assistant", "messages[1]"),
        ([USER, {"role": "assistant", "content": ["a"]}], "bad_content", "content[0]"),
        ([USER, {"role": "assistant", "content": [{"type": "text"}]}], "bad_content", "text"),
        ([{**USER, "content": [{"type": "image_url"}]}, ANSWER], "not_text", "'image_url'"),
        ([{**USER, "name": 3}, ANSWER], "bad_message", "name"),
        ([{**USER, "tool_calls": [{}]}, ANSWER], "bad_tool_calls", "assistant turns only"),
        ([USER, {**ANSWER, "tool_calls": "x"}], "bad_tool_calls", "a string"),
        ([USER, {**ANSWER, "tool_calls": [{}]}], "bad_tool_calls", "function.name"),
        ([USER, call("{")], "bad_arguments", "not valid JSON"),
        ([USER, call("[1]")], "bad_arguments", "a list"),
        ([USER, {**ANSWER, "function_call": {}}], "bad_tool_calls", "function.name"),
    ],
)
def test_a_bad_message_is_named_with_its_place(messages: Any, code: str, said: str) -> None:
    problem = parse(*messages)
    assert isinstance(problem, RowProblem)
    assert problem.code == code and said in problem.message


def test_bad_tools_are_refused() -> None:
    problem = parse(USER, ANSWER, tools={"name": "depth"})
    assert isinstance(problem, RowProblem) and problem.code == "bad_tools"


KEYS = ["messages", "conversations", "prompt", "completion", "text", "instruction", "input"]
KEYS += ["output", "system", "history", "tools", "label", "chosen", "rejected"]
KEYS += ["preferred_output", "non_preferred_output"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "weight", "tool_calls", "text", "from", "value"]),
            inner,
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(JSON, max_size=3), JSON)
def test_no_json_at_all_makes_the_reader_fail(messages: Any, tools: Any) -> None:
    row = json.dumps({"messages": messages, "tools": tools}).encode()
    assert isinstance(parse_row(row), Conversation | RowProblem)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_no_row_of_any_format_makes_the_reader_fail(row: Any) -> None:
    parsed = parse_row(json.dumps(row).encode())
    assert isinstance(parsed, Conversation | PlainText | Preference | RowProblem)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_at_all_make_the_reader_fail(line: bytes) -> None:
    assert isinstance(parse_row(line), Conversation | PlainText | Preference | RowProblem)


def renamed(columns: dict[str, str], **row: Any) -> Any:
    return parse_row(json.dumps(row).encode(), None, columns)


def test_columns_stand_for_the_keys_of_a_format() -> None:
    columns = {"prompt": "question", "completion": "answer"}
    row = renamed(columns, question="Why?", answer="So.", id=3)
    assert isinstance(row, PlainText)
    assert (row.prompt, row.completion, row.ignored_keys) == ("Why?", "So.", ("id",))
    swapped = renamed({"prompt": "completion", "completion": "prompt"}, prompt="a", completion="b")
    assert isinstance(swapped, PlainText) and (swapped.prompt, swapped.completion) == ("b", "a")


def test_a_column_may_be_missing_where_the_key_is_optional() -> None:
    columns = {"instruction": "q", "input": "context", "output": "a"}
    row = renamed(columns, q="Sort.", a="a b")
    assert isinstance(row, Conversation) and row.messages[0].content == "Sort."


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"question": "a"}, "missing_column"),
        ({"question": "a", "answer": "b", "prompt": "c"}, "column_conflict"),
        ({"question": "a", "answer": None}, "unknown_format"),
    ],
)
def test_columns_that_are_missing_or_hide_others_are_named(row: Any, code: str) -> None:
    problem = renamed({"prompt": "question", "completion": "answer"}, **row)
    assert isinstance(problem, RowProblem) and problem.code == code


@pytest.mark.parametrize(
    "columns", [{"question": "a"}, {"prompt": "a", "completion": "a"}, {"role": "a"}]
)
def test_columns_for_what_no_format_has_are_refused(columns: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="columns"):
        RowReader(None, columns)
