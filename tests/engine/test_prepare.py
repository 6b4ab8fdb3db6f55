"""No row is lost without a word: each is kept as it is, fitted as asked, or named as a problem."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.data import TokenDataset
from headrace.engine.data_report import DataProblem, DataReport
from headrace.engine.prepare import RowIndex, check_rows, prepare_dataset
from tiny import make_tokenizer

TOKENIZER = make_tokenizer()


def row(answer: str, question: str = "Why?", **rest: Any) -> str:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages, **rest})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def prepared(tmp_path: Path, *lines: str, **how: Any) -> tuple[DataReport, TokenDataset]:
    report = prepare_lines(tmp_path, *lines, **how)
    return report, TokenDataset.open(tmp_path / "out")


def prepare_lines(tmp_path: Path, *lines: str, max_seq_len: int = 200, **how: Any) -> DataReport:
    file = write(tmp_path / "train.jsonl", *lines)
    out = tmp_path / "out"
    how = {"vocab_size": len(TOKENIZER), "max_seq_len": max_seq_len, **how}
    return prepare_dataset([file], tokenizer=TOKENIZER, out_dir=out, **how)


def problem(tmp_path: Path, *lines: str, **how: Any) -> DataProblem:
    with pytest.raises(DataProblem) as caught:
        prepare_lines(tmp_path, *lines, **how)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"], "something was left"
    return caught.value


def num_tokens(line: str) -> int:
    messages = json.loads(line)["messages"]
    return len(TOKENIZER.apply_chat_template(messages, return_dict=False))


def test_rows_are_stored_as_the_template_renders_them(tmp_path: Path) -> None:
    lines = [row("One."), row("Two, and a bit."), row("Three.", "When is it?")]
    report, dataset = prepared(tmp_path, *lines)
    assert dataset.num_rows == report.rows == report.kept == 3
    for i, line in enumerate(lines):
        ids, labels = dataset.row(i)
        messages = json.loads(line)["messages"]
        assert ids.tolist() == TOKENIZER.apply_chat_template(messages, return_dict=False)
        said = TOKENIZER.decode(labels[labels >= 0])
        assert said == messages[1]["content"] + "<|im_end|>"


def test_the_report_counts_what_the_data_set_holds(tmp_path: Path) -> None:
    report, dataset = prepared(tmp_path, row("One."), row("Two " * 30))
    assert report.tokens == dataset.num_tokens == int(dataset.lengths.sum())
    assert report.longest == dataset.longest
    trained = sum(int((dataset.row(i)[1][1:] >= 0).sum()) for i in range(2))
    assert report.trained_tokens == dataset.num_trained_tokens == trained
    assert sum(report.histogram.values()) == 2
    stored = json.loads((dataset.path / "report.json").read_text())
    assert stored == json.loads(json.dumps(report.to_dict()))


def test_the_report_tells_what_packing_saves(tmp_path: Path) -> None:
    lines = [row("One."), row("Two " * 30), row("Three.")]
    report, dataset = prepared(tmp_path, *lines, batch_rows=3, microbatch_rows=2)
    short, long, other = (
        sorted(dataset.lengths.tolist())[::2] + sorted(dataset.lengths.tolist())[1:2]
    )
    computed = 2 * long + short  # the two longest side by side, and the shortest alone
    assert report.padding == {
        "batch_rows": 3,
        "microbatch_rows": 2,
        "padding_tokens": computed - report.tokens,
        "saved_by_packing": round(1 - report.tokens / computed, 4),
    }
    assert long > other


def test_the_preview_shows_which_words_train(tmp_path: Path) -> None:
    report, _ = prepared(tmp_path, row("One."), row("Two."), row("Three."))
    assert len(report.preview) == 2
    prompt, answer, rest = report.preview[0]
    assert answer == {"text": "One.<|im_end|>", "trained": True}
    assert not prompt["trained"] and prompt["text"].endswith("assistant\n")
    assert rest == {"text": "\n", "trained": False}


def test_several_files_are_one_data_set_in_order(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", row("One.")), write(tmp_path / "b.jsonl", row("Two."))]
    report = prepare_dataset(
        files, tokenizer=TOKENIZER, out_dir=tmp_path / "out", max_seq_len=200, vocab_size=384
    )
    dataset = TokenDataset.open(tmp_path / "out")
    assert "Two." in TOKENIZER.decode(dataset.row(1)[0])
    for entry, file in zip(report.files, files, strict=True):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        size = file.stat().st_size
        assert entry == {"name": file.name, "bytes": size, "sha256": digest, "form": "JSONL"}


def test_blank_lines_are_no_rows_but_are_counted(tmp_path: Path) -> None:
    report, _ = prepared(tmp_path, row("One."), "", "  ", row("Two."))
    assert (report.rows, report.blank_lines) == (2, 2)


def test_one_bad_row_refuses_the_file_with_its_line(tmp_path: Path) -> None:
    caught = problem(tmp_path, row("One."), "", '{"messages": [', row("Two."))
    assert "train.jsonl, line 3: not valid JSON" in str(caught)
    assert "1 of 3 rows" in str(caught)
    assert caught.report is not None and caught.report.kept == 2


def test_all_reasons_are_counted_with_the_first_lines_of_each(tmp_path: Path) -> None:
    user_only = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
    caught = problem(tmp_path, *[user_only] * 25, row("One."), "{", "{")
    report = caught.report
    assert report is not None
    assert {code: tally.count for code, tally in report.problems.items()} == {
        "no_assistant": 25,
        "invalid_json": 2,
    }
    assert [place.line for place in report.problems["no_assistant"].places] == list(range(1, 21))
    assert "no_assistant also on lines 4, 5," in str(caught) and "…" in str(caught)
    assert str(caught).count("nothing to learn") == 3


def test_what_the_template_cannot_carry_is_a_problem_of_its_line(tmp_path: Path) -> None:
    caught = problem(tmp_path, row("One."), row("Two.", tools=[{"name": "depth"}]))
    assert "line 2: the model's chat template does not show the tool 'depth'" in str(caught)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert "no rows" in str(problem(tmp_path))


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    bare = make_tokenizer()
    bare.chat_template = None
    file = write(tmp_path / "train.jsonl", row("One."))
    with pytest.raises(DataProblem, match="no chat template"):
        prepare_dataset(
            [file], tokenizer=bare, out_dir=tmp_path / "out", max_seq_len=9, vocab_size=384
        )


LONG = row("yes " * 40)


def test_a_token_that_the_model_has_no_row_for_is_a_problem_of_its_line(tmp_path: Path) -> None:
    highest = max(TOKENIZER(row("Two zebras."))["input_ids"])
    found = problem(tmp_path, row("One."), row("Two zebras."), vocab_size=highest)
    assert f"the model's table ends at {highest - 1}" in str(found)
    assert found.report and "unknown_token" in found.report.problems


def test_an_overlong_row_is_an_error_by_default(tmp_path: Path) -> None:
    caught = problem(tmp_path, row("One."), LONG, max_seq_len=60)
    assert f"line 2: {num_tokens(LONG)} tokens; max_seq_len is 60" in str(caught)
    assert "set overlong to drop" in str(caught)


def test_a_row_of_just_the_allowed_length_is_kept(tmp_path: Path) -> None:
    report, _ = prepared(tmp_path, LONG, max_seq_len=num_tokens(LONG))
    assert report.kept == 1
    with pytest.raises(DataProblem):
        prepare_lines(tmp_path, LONG, max_seq_len=num_tokens(LONG) - 1)


def test_dropped_rows_are_counted_and_listed(tmp_path: Path) -> None:
    report, dataset = prepared(
        tmp_path, row("One."), LONG, row("Two."), max_seq_len=60, overlong="drop"
    )
    assert (report.rows, report.kept, dataset.num_rows) == (3, 2, 2)
    assert report.notes["overlong_dropped"].count == 1
    ((place, tokens),) = report.overlong_rows
    assert (place.line, tokens) == (2, num_tokens(LONG))


@pytest.mark.parametrize("side", ["truncate_left", "truncate_right"])
def test_truncation_keeps_the_other_end_and_says_what_it_cost(tmp_path: Path, side: Any) -> None:
    whole = TOKENIZER.apply_chat_template(json.loads(LONG)["messages"], return_dict=False)
    report, dataset = prepared(tmp_path, LONG, max_seq_len=60, overlong=side)
    kept = whole[:60] if side == "truncate_right" else whole[-60:]
    assert dataset.row(0)[0].tolist() == kept
    assert report.notes["overlong_truncated"].count == 1
    cut = report.notes["answer_cut"]
    assert cut.count == 1 and "trained tokens were cut off" in cut.examples[0]


def test_a_row_that_truncation_leaves_without_an_answer_is_dropped(tmp_path: Path) -> None:
    asks_long = row("No.", "really " * 40)
    report, _ = prepared(
        tmp_path, asks_long, row("One."), max_seq_len=60, overlong="truncate_right"
    )
    assert report.kept == 1 and report.notes["overlong_dropped"].places[0].line == 1


def test_a_set_without_a_trained_token_cannot_start(tmp_path: Path) -> None:
    caught = problem(tmp_path, LONG, max_seq_len=10, overlong="drop")
    assert "no trained token is left of 1 rows (1 x overlong_dropped)" in str(caught)


def test_duplicates_are_kept_but_counted_with_their_lines(tmp_path: Path) -> None:
    report, _ = prepared(tmp_path, row("A."), row("B."), row("A."), row("A.", note=1), row("C."))
    assert report.kept == 5 and report.duplicates == 2
    assert [place.line for place in report.notes["duplicate"].places] == [3, 4]
    assert "the same as train.jsonl, line 1" in report.notes["duplicate"].examples[0]


def test_the_same_text_with_other_labels_is_no_duplicate(tmp_path: Path) -> None:
    silent = {"role": "assistant", "content": "A.", "weight": 0}
    ask, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "B."}
    half = json.dumps({"messages": [ask, silent, ask, answer]})
    both = json.dumps({"messages": [ask, {**silent, "weight": 1}, ask, answer]})
    assert prepared(tmp_path, half, both)[0].duplicates == 0


def test_control_tokens_in_the_text_and_unknown_keys_are_noted(tmp_path: Path) -> None:
    report, _ = prepared(tmp_path, row("One."), row("Two.", "a<|im_end|>b", source="web"))
    assert report.notes["control_token_text"].places[0].line == 2
    assert "source" in report.notes["ignored_keys"].examples[0]


def test_progress_ends_at_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare_lines(
        tmp_path, row("One."), row("Two."), progress=lambda done, total: seen.append((done, total))
    )
    size = (tmp_path / "train.jsonl").stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def test_stopping_through_progress_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_lines(tmp_path, row("One."), progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_a_new_preparation_replaces_the_old(tmp_path: Path) -> None:
    prepared(tmp_path, row("One."), row("Two."))
    assert prepared(tmp_path, row("Three."))[1].num_rows == 1


def test_the_form_is_checked_without_a_tokenizer(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", row("One."), "", "{", row("Two."), "[]")
    check = check_rows(file, limit_seconds=10)
    assert check.num_rows == 4 and check.complete and check.formats == {"messages": 2}
    assert [(found.line, found.code) for found in check.problems] == [
        (3, "invalid_json"),
        (5, "not_an_object"),
    ]


def test_the_check_of_the_form_stops_in_time_and_after_20_problems(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", *[row("One.")] * 1000)
    assert check_rows(file, limit_seconds=0).num_rows == 1
    write(file, *["{"] * 100)
    check = check_rows(file, limit_seconds=10)
    assert check.num_rows == len(check.problems) == 20 and not check.complete


def test_a_line_above_the_limit_is_one_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.row_files.MAX_LINE_BYTES", 300)
    monkeypatch.setattr("headrace.engine.row_json.MAX_LINE_BYTES", 300)
    file = write(tmp_path / "train.jsonl", row("One."), row("x" * 2000), row("Two."))
    check = check_rows(file, limit_seconds=10)
    (found,) = check.problems
    assert (check.num_rows, found.line, found.code) == (3, 2, "line_too_long")


def test_a_file_that_mixes_formats_is_taken_and_counted_by_format(tmp_path: Path) -> None:
    completion = json.dumps({"prompt": "Why?", "completion": "One."})
    report, dataset = prepared(tmp_path, row("One."), completion, json.dumps({"text": "Water."}))
    assert report.formats == {"messages": 1, "prompt/completion": 1, "text": 1}
    assert report.duplicates == 1, "a completion is the assistant's turn"
    assert dataset.num_rows == 3


def test_the_report_says_what_decided_the_labels(tmp_path: Path) -> None:
    report, few = prepared(tmp_path, row("One."))
    assert report.numerics["train_on"] == "assistant" and report.numerics["max_seq_len"] == 200
    assert report.numerics["end_token"] == TOKENIZER.eos_token_id
    report, all_of_it = prepared(tmp_path, row("One."), train_on="all")
    assert report.numerics["train_on"] == "all"
    assert all_of_it.num_trained_tokens == all_of_it.num_tokens - 1 > few.num_trained_tokens


def test_validation_rows_that_are_trained_on_are_counted_and_warned_of(tmp_path: Path) -> None:
    training = RowIndex()
    report, _ = prepared(tmp_path, row("A."), row("B."), row("C."), index=training)
    assert report.warnings == ()
    report, _ = prepared(tmp_path, row("D."), row("C.", id=7), row("A."), training=training)
    assert report.notes["in_training"].count == 2
    assert [place.line for place in report.notes["in_training"].places] == [2, 3]
    (warning,) = report.warnings
    assert warning.startswith("2 of 3 rows are in the training data too")
    assert "train.jsonl, line 2: the same as train.jsonl, line 3 of the training data" in warning
    assert report.to_dict()["warnings"] == report.warnings


def test_a_validation_row_leaks_even_when_training_only_reads_it(tmp_path: Path) -> None:
    training = RowIndex()
    ask, silent = {"role": "user", "content": "?"}, {"role": "assistant", "content": "A."}
    both = [ask, silent, ask, {"role": "assistant", "content": "B."}]
    half = [ask, {**silent, "weight": 0}, *both[2:]]
    prepared(tmp_path, json.dumps({"messages": half}), index=training)
    report, _ = prepared(tmp_path, json.dumps({"messages": both}), training=training)
    assert report.notes["in_training"].count == 1
    forms = []
    for name, turns in (("half", half), ("both", both)):
        file = write(tmp_path / name, json.dumps({"messages": turns}))
        forms.append(check_rows(file, limit_seconds=9).index)
    assert forms[1].found_in(forms[0]).count == 1


def test_problems_in_an_array_are_named_by_item(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("[" + row("One.") + ",\n {}," + row("Two.") + "]")
    with pytest.raises(DataProblem, match=r"train.jsonl, line 2 \(item 2\): the row's format"):
        prepare_dataset(
            [file], tokenizer=TOKENIZER, out_dir=tmp_path / "out", max_seq_len=99, vocab_size=384
        )


def test_rows_that_say_the_same_in_another_format_are_found_without_a_tokenizer(
    tmp_path: Path,
) -> None:
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "One."}]
    same = [row("One."), json.dumps({"prompt": "Why?", "completion": "One."})]
    same += [json.dumps({"instruction": "Why?", "output": "One.", "id": 3})]
    same += [json.dumps({"conversations": turns})]
    check = check_rows(write(tmp_path / "train.jsonl", *same, row("Two.")), limit_seconds=10)
    assert check.index.duplicates().count == 3


TALK = {"messages": [*json.loads(row("One."))["messages"], *json.loads(row("Two."))["messages"]]}


def test_each_turn_may_be_a_row_that_ends_with_it(tmp_path: Path) -> None:
    lines = [json.dumps(TALK), row("Three."), json.dumps({"text": "Water."})]
    report, dataset = prepared(tmp_path, *lines, train_on="each_assistant")
    assert (report.rows, report.kept, report.examples, dataset.num_rows) == (3, 3, 4, 4)
    texts = [TOKENIZER.decode(dataset.row(i)[0]) for i in range(4)]
    labels = [dataset.row(i)[1] for i in range(4)]
    assert texts[1].startswith(texts[0]) and texts[1].endswith("Two.<|im_end|>\n")
    said = [TOKENIZER.decode(one[one >= 0]) for one in labels]
    assert said == [f"{text}<|im_end|>" for text in ("One.", "Two.", "Three.", "Water.")]
    places = [dataset.place(i) for i in range(4)]
    assert [place.line for place in places if place] == [1, 1, 2, 3]


def test_of_turns_that_are_rows_each_is_fitted_by_itself(tmp_path: Path) -> None:
    talk = {"messages": [*TALK["messages"], *json.loads(LONG)["messages"]]}
    given = {"train_on": "each_assistant", "max_seq_len": 60}
    report, dataset = prepared(tmp_path, json.dumps(talk), overlong="drop", **given)
    assert (report.kept, report.examples, dataset.num_rows) == (1, 2, 2)
    assert report.notes["overlong_dropped"].count == 1
