"""Files that people have brought to other tools in vain have their right fate here, row by row."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from awkward import CASES, Case
from headrace.engine.data import TokenDataset
from headrace.engine.data_report import DataProblem, DataReport
from headrace.engine.prepare import FormCheck, RowIndex, check_rows, prepare_dataset
from tiny import make_tokenizer


def begins_texts() -> Any:
    """A tokenizer that puts its first token before every text, as Llama's do."""
    made = make_tokenizer()
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", made.bos_token_id)]
    )
    return made


def pads_with_end() -> Any:
    """A tokenizer whose padding is its end token."""
    made = make_tokenizer()
    made.pad_token = made.eos_token
    return made


def merges_line_feeds() -> Any:
    """A tokenizer for which two line feeds are one token."""
    made = make_tokenizer()
    state = json.loads(made.backend_tokenizer.to_str())
    state["model"]["vocab"]["ĊĊ"] = len(made)
    state["model"]["merges"].insert(0, ["Ċ", "Ċ"])
    made._tokenizer = Tokenizer.from_str(json.dumps(state))
    return made


TOKENIZERS = {
    "tiny": make_tokenizer,
    "begins_texts": begins_texts,
    "pads_with_end": pads_with_end,
    "merges_line_feeds": merges_line_feeds,
}


def prepare(case: Case, file: Path, **how: Any) -> DataReport:
    tokenizer = TOKENIZERS[case.tokenizer]()
    tokenizer.chat_template = case.template
    how = {"max_seq_len": 500, "vocab_size": 400, **case.options, **how}
    return prepare_dataset([file], tokenizer=tokenizer, out_dir=file.parent / "rows", **how)


def quick(case: Case, file: Path) -> FormCheck:
    """The check without a tokenizer."""
    options = case.options
    return check_rows(file, columns=options.get("columns"), objective=options.get("objective"))


def labelled_runs(path: Path) -> list[str]:
    """The trained text of all rows, one text a run of labels."""
    dataset = TokenDataset.open(path)
    runs = []
    for _, labels in chain(*map(dataset.answers, range(dataset.num_rows))):
        run: list[int] = []
        for label in [*labels.tolist(), -100]:
            if label >= 0:
                run.append(label)
            elif run:
                runs.append(make_tokenizer().decode(run))
                run = []
    return runs


def write(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def of(fate: str) -> pytest.MarkDecorator:
    """Parametrize with the cases of that fate, named."""
    cases = [case for case in CASES if getattr(case, fate)]
    return pytest.mark.parametrize("case", cases, ids=str)


def test_there_are_many_and_each_is_of_another_report_or_kind() -> None:
    assert len(CASES) >= 60
    assert max(Counter(str(case) for case in CASES).values()) == 1
    for case in CASES:
        assert sum(map(bool, (case.trained, case.problems, case.refused))) == 1, case
        repository, _, number = case.seen.partition("#")
        assert repository.count("/") == 1 and number.isdigit(), case


@of("trained")
def test_what_should_train_trains_and_decodes_to_what_was_meant(case: Case, tmp_path: Path) -> None:
    file = write(tmp_path, case.file_name, case.data)
    index = RowIndex()
    report = prepare(case, file, index=index)
    runs = labelled_runs(tmp_path / "rows")
    assert len(runs) == len(case.trained)
    for run, wanted in zip(runs, case.trained, strict=True):
        assert run == wanted or wanted.startswith("...") and run.endswith(wanted[3:])
    assert {code: tally.count for code, tally in report.notes.items()} == case.notes
    assert quick(case, file).problems == []
    if case.valid:
        found = prepare(case, write(tmp_path, "valid.jsonl", case.valid), training=index)
        assert found.notes["in_training"].count == case.in_training


@of("problems")
def test_what_cannot_train_is_named_by_line_and_reason(case: Case, tmp_path: Path) -> None:
    file = write(tmp_path, case.file_name, case.data)
    with pytest.raises(DataProblem) as caught:
        prepare(case, file)
    report = caught.value.report
    assert report is not None
    found = {(p.line, code) for code, tally in report.problems.items() for p in tally.places}
    assert found == {(problem.line, problem.code) for problem in case.problems}
    for problem in case.problems:
        examples = report.problems[problem.code].examples
        where = f"line {problem.line}" if problem.line else "row"
        place = f"{case.file_name}, {where}"
        words, *_ = [said for said in examples if said.startswith((f"{place}:", f"{place} "))]
        assert problem.said in words
        assert words in str(caught.value)
    assert case.advice in str(caught.value)
    seen = {(problem.line, problem.code) for problem in quick(case, file).problems}
    assert seen <= found, "what the quick check refuses, the whole one refuses for the same reason"


@of("refused")
def test_a_file_that_is_no_rows_says_what_it_is(case: Case, tmp_path: Path) -> None:
    file = write(tmp_path, case.file_name, case.data)
    for look in (lambda: prepare(case, file), lambda: quick(case, file)):
        with pytest.raises(DataProblem) as caught:
            look()
        assert case.file_name in str(caught.value) and case.refused in str(caught.value)
