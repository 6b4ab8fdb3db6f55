"""The demo's rows are few, short, invented, and the same whenever they are made."""

import json
from pathlib import Path

from headrace.engine.chat import render
from headrace.engine.demo_data import DemoData, write_demo_data
from headrace.engine.row_types import Conversation
from headrace.engine.rows import parse_row
from tiny import make_tokenizer


def rows(path: Path) -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


def asked(path: Path) -> list[tuple[str, str]]:
    return [(user["content"], assistant["content"]) for _, user, assistant in rows(path)]


def made(path: Path, seed: int = 0) -> DemoData:
    return write_demo_data(path, seed=seed)


def test_a_seed_makes_the_same_rows_everywhere(tmp_path: Path) -> None:
    first, again, other = made(tmp_path / "a"), made(tmp_path / "b"), made(tmp_path / "c", seed=1)
    assert first.train.read_bytes() == again.train.read_bytes()
    assert first.valid.read_bytes() == again.valid.read_bytes()
    assert first.train.read_bytes() != other.train.read_bytes()


def test_rows_are_distinct_and_few(tmp_path: Path) -> None:
    data = made(tmp_path)
    train = asked(data.train)
    assert len(train) == len(set(train)) == 64
    assert len(asked(data.valid)) == len(data.questions) == 16


def test_every_work_has_one_answer_and_no_two_share_it(tmp_path: Path) -> None:
    answers = [answer for _, answer in asked(made(tmp_path).train)]
    assert {answers.count(answer) for answer in answers} == {4}
    rivers = {answer.split(" River ")[1] for answer in answers}
    assert len(rivers) == 16


def test_questions_of_the_trial_are_worded_as_no_row_is_but_have_known_answers(
    tmp_path: Path,
) -> None:
    data = made(tmp_path)
    train = asked(data.train)
    assert not {question for question, _ in train} & {question for question, _ in data.questions}
    assert {answer for _, answer in train} == {answer for _, answer in data.questions}


def test_rows_say_that_the_facts_are_invented(tmp_path: Path) -> None:
    data = made(tmp_path)
    assert "invented" in data.system
    for row in rows(data.train) + rows(data.valid):
        assert row[0] == {"role": "system", "content": data.system}


def test_rows_can_be_rendered_and_labelled(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    for line in made(tmp_path).train.read_bytes().splitlines():
        row = parse_row(line)
        assert isinstance(row, Conversation)
        example = render(tokenizer, row)
        said = tokenizer.decode([label for label in example.labels if label >= 0])
        assert said == f"{row.messages[-1].content}<|im_end|>"
