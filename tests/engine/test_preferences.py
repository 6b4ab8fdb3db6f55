"""A preference is a prompt with a better and a worse answer, kept together from file to step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.engine import TrainConfig
from headrace.engine.data import TokenDataset, open_rows, step_microbatches
from headrace.engine.data_report import DataProblem, DataReport
from headrace.engine.packing import (
    Arrangement,
    RowLengths,
    extent_of,
    row_lengths,
    settle_microbatch,
)
from headrace.engine.prepare import RowIndex, check_rows, prepare_dataset
from headrace.engine.row_types import Conversation, PlainText, Preference, RowProblem
from headrace.engine.rows import parse_row
from tiny import make_tokenizer

TOKENIZER = make_tokenizer()
ASK = {"role": "user", "content": "Is the sluice open?"}
GOOD = {"role": "assistant", "content": "It is open."}
BAD = {"role": "assistant", "content": "Who knows?"}
PAIR = {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]}
TEXTS = {"prompt": "Is it open?", "chosen": " Yes, it is.", "rejected": " No."}
OPENAI = {
    "input": {"messages": [ASK], "tools": [], "parallel_tool_calls": True},
    "preferred_output": [GOOD],
    "non_preferred_output": [BAD],
}
CHAT = {"messages": [ASK, GOOD]}
ENDED = "<|im_end|>"


def parse(row: Any, objective: Any = None) -> Preference:
    parsed = parse_row(json.dumps(row).encode(), objective)
    assert isinstance(parsed, Preference), parsed
    return parsed


def turns(row: Preference) -> list[list[tuple[Any, ...]]]:
    found: list[list[tuple[Any, ...]]] = []
    for _, answer in row.answers:
        assert isinstance(answer, Conversation)
        found.append([(turn.role, turn.content, turn.trained) for turn in answer.messages])
    return found


@pytest.mark.parametrize(
    "row",
    [
        PAIR,
        OPENAI,
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": [ASK], "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": ASK["content"], "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"prompt": ASK["content"], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [ASK], "chosen": GOOD["content"], "rejected": BAD["content"]},
        {"prompt": [ASK], "chosen": GOOD, "rejected": BAD},
    ],
)
def test_every_form_says_the_same(row: Any) -> None:
    asked = ("user", ASK["content"], False)
    said = [[asked, ("assistant", one["content"], True)] for one in (GOOD, BAD)]
    assert turns(parse(row)) == said


def test_texts_stay_texts() -> None:
    row = parse(TEXTS)
    assert row.chosen == PlainText(
        format="preference", prompt="Is it open?", completion=" Yes, it is."
    )
    assert isinstance(row.rejected, PlainText) and row.rejected.completion == " No."


def test_all_shared_turns_are_the_prompt_and_none_of_them_is_trained() -> None:
    again = {"role": "user", "content": "And now?"}
    row = {"chosen": [ASK, GOOD, again, GOOD], "rejected": [ASK, GOOD, again, BAD]}
    assert [[turn[2] for turn in answer] for answer in turns(parse(row))] == [
        [False, False, False, True]
    ] * 2


def test_messages_beside_a_preference_are_another_column_of_it() -> None:
    """Tables of preferences often hold the chosen conversation a second time, as messages."""
    row = {**PAIR, **CHAT, "score_chosen": 8.5}
    assert parse(row, "dpo").ignored_keys == ("messages", "score_chosen")
    assert isinstance(parse_row(json.dumps(row).encode(), "supervised"), Conversation)


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [
        ({"prompt": "a", "chosen": "b"}, "half_a_preference", "no rejected"),
        ({**OPENAI, "non_preferred_output": None}, "half_a_preference", "no non_preferred_output"),
        ({**OPENAI, "input": "Hi"}, "bad_messages", "input is a string"),
        ({**OPENAI, "input": {}}, "bad_messages", "input.messages is null"),
        ({**TEXTS, "rejected": TEXTS["chosen"]}, "same_answers", "neither is better"),
        ({**PAIR, "rejected": [GOOD]}, "same_answers", "neither is better"),
        ({"chosen": [ASK, GOOD], "rejected": [ASK, GOOD]}, "same_answers", "neither is better"),
        ({**TEXTS, "chosen": " \n"}, "empty_answer", "chosen is empty"),
        ({**PAIR, "chosen": []}, "empty_answer", "chosen says nothing"),
        ({"chosen": [ASK, GOOD], "rejected": [ASK]}, "empty_answer", "rejected says nothing"),
        ({"prompt": "x", "chosen": [ASK, GOOD], "rejected": [ASK]}, "empty_answer", "rejected"),
        ({**PAIR, "chosen": [{**GOOD, "content": ""}]}, "empty_assistant", "chosen[0]"),
        ({**PAIR, "rejected": [ASK]}, "no_assistant", "rejected: no assistant turn"),
        ({"chosen": "a", "rejected": "b"}, "no_prompt", "prompt is null"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "no_prompt", "no turn alike"),
        ({**PAIR, "prompt": []}, "no_prompt", "at least one turn"),
        ({**PAIR, "prompt": 7}, "bad_content", "prompt is a number"),
        ({**PAIR, "chosen": "text"}, "bad_messages", "chosen is a string"),
        ({"prompt": "x", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, "prompt_differs", "prom"),
    ],
)
def test_a_bad_preference_says_what_is_wrong(row: Any, code: str, said: str) -> None:
    problem = parse_row(json.dumps(row).encode())
    assert isinstance(problem, RowProblem)
    assert problem.code == code and said in problem.message


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def prepare(folder: Path, *rows: Any, name: str = "rows", **how: Any) -> DataReport:
    how = {"max_seq_len": 200, "vocab_size": len(TOKENIZER), **how}
    file = write(folder / f"{name}.jsonl", *rows)
    return prepare_dataset([file], tokenizer=TOKENIZER, out_dir=folder / name, **how)


def refusal(folder: Path, *rows: Any, **how: Any) -> str:
    with pytest.raises(DataProblem) as caught:
        prepare(folder, *rows, **how)
    return str(caught.value)


def longer(answer: str, rejected: str) -> dict[str, Any]:
    return {"prompt": [ASK], "chosen": [{**GOOD, "content": answer}],
            "rejected": [{**BAD, "content": rejected}]}  # fmt: skip


def test_both_answers_are_stored_one_behind_the_other(tmp_path: Path) -> None:
    report = prepare(tmp_path, PAIR, OPENAI, TEXTS, objective="dpo")
    data = TokenDataset.open(tmp_path / "rows")
    assert data.num_rows == report.rows == report.kept == 3
    assert report.objective == "dpo"
    assert report.formats == {"preference": 2, "openai preference": 1}
    for row, (good, bad) in enumerate([(GOOD, BAD), (GOOD, BAD)]):
        trained = [TOKENIZER.decode(labels[labels >= 0]) for _, labels in data.answers(row)]
        assert trained == [good["content"] + ENDED, bad["content"] + ENDED]
    assert report.tokens == data.num_tokens
    assert report.trained_tokens == data.num_trained_tokens
    assert report.notes["duplicate"].count == 1  # in two forms, and still the same


def test_a_data_set_holds_one_kind_of_rows(tmp_path: Path) -> None:
    said = refusal(tmp_path, CHAT, PAIR)
    assert "2 x" not in said and "1 x wrong_kind" in said and "line 2" in said
    assert "1 x wrong_kind" in refusal(tmp_path, PAIR, CHAT)
    assert "train with method dpo" in refusal(tmp_path, PAIR, objective="supervised")
    assert "learns from pairs" in refusal(tmp_path, CHAT, objective="dpo")


def test_forms_alone_tell_the_kind_and_the_twins(tmp_path: Path) -> None:
    found = check_rows(write(tmp_path / "rows.jsonl", PAIR, OPENAI, CHAT), limit_seconds=60)
    assert found.objective == "dpo"
    assert found.formats == {"preference": 1, "openai preference": 1}
    assert [problem.code for problem in found.problems] == ["wrong_kind"]
    assert found.index.duplicates().count == 1


def test_a_validation_preference_that_is_trained_too_is_counted(tmp_path: Path) -> None:
    training = RowIndex()
    prepare(tmp_path, PAIR, TEXTS, index=training)
    report = prepare(tmp_path, OPENAI, longer("Not yet.", "Hm."), name="valid", training=training)
    assert report.notes["in_training"].count == 1


@pytest.mark.parametrize(("overlong", "kept"), [("drop", 1), ("truncate_right", 2)])
def test_an_overlong_answer_takes_the_other_with_it(
    tmp_path: Path, overlong: str, kept: int
) -> None:
    rows = [PAIR, longer("No, " * 200, "Hm.")]
    assert "1 x overlong" in refusal(tmp_path, *rows, max_seq_len=100)
    report = prepare(tmp_path, *rows, max_seq_len=100, overlong=overlong)
    assert report.kept == TokenDataset.open(tmp_path / "rows").num_rows == kept


def test_answers_that_differ_only_where_they_are_cut_off_are_left_out(tmp_path: Path) -> None:
    rows = [PAIR, longer("No, " * 200 + "yes.", "No, " * 200 + "no.")]
    report = prepare(tmp_path, *rows, max_seq_len=100, overlong="truncate_right")
    assert report.kept == 1 and report.notes["overlong_dropped"].count == 1


def test_prompts_are_not_trained_whatever_is_asked(tmp_path: Path) -> None:
    assert "all_of_a_preference" in refusal(tmp_path, PAIR, train_on="all")


@pytest.mark.parametrize("packing", ["on", "off"])
def test_answers_of_a_row_share_a_microbatch_and_the_plan_counts_them(
    tmp_path: Path, packing: Any
) -> None:
    rng = np.random.default_rng(1)
    texts = [("yes " * int(a), "no " * int(b)) for a, b in rng.integers(1, 30, (11, 2))]
    prepare(tmp_path, *(longer(*answers) for answers in texts), objective="dpo")
    config = TrainConfig(model="", dataset=str(tmp_path / "rows"), objective="dpo", batch_rows=4,
                         microbatch_rows=2, packing=packing, num_epochs=2)  # fmt: skip
    data = open_rows(config, config.dataset)
    lengths = RowLengths.read(config)
    assert lengths.training.tolist() == data.lengths.tolist()
    config = settle_microbatch(config, data.longest)
    arrangement = Arrangement.of(config)
    steps = [step_microbatches(data, arrangement, step=step) for step in range(1, 7)]
    for batch in [batch for step in steps for batch in step]:
        answers = [ids for row in batch.row_indices for ids, _ in data.answers(row)]
        assert batch.num_tokens == sum(map(len, answers))
        assert batch.lengths[: len(answers)].tolist() == [len(ids) for ids in answers]
    extent = extent_of(lengths, config)
    computed = [sum(batch.ids.numel() for batch in step) for step in steps]
    assert extent.step_tokens == max(computed)
    assert extent.mean_step_tokens == sum(computed) / len(computed)
    limit = arrangement.limit(data.longest)
    assert limit.step_tokens >= max(computed)
    assert limit.microbatch_tokens >= extent.microbatch_tokens


def test_rows_of_the_other_kind_are_refused_by_a_run(tmp_path: Path) -> None:
    prepare(tmp_path, PAIR)
    with pytest.raises(DataProblem, match="supervised trains on rows of one answer"):
        open_rows(TrainConfig(model="", dataset=""), str(tmp_path / "rows"))


def test_rows_take_what_their_answers_take() -> None:
    offsets = np.array([0, 3, 10, 12, 14])
    assert row_lengths(offsets, 2, packed=True).tolist() == [10, 4]
    assert row_lengths(offsets, 2, packed=False).tolist() == [14, 4]
