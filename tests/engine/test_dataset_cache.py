"""The same rows are tokenized once; what may change a token makes another data set."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import dataset_cache
from headrace.engine.content import content_key, model_key
from headrace.engine.data import TokenDataset
from headrace.engine.data_report import DataProblem, DataReport
from headrace.engine.dataset_cache import DatasetCache, Prepared
from headrace.engine.prepare import check_dataset, prepare_dataset
from headrace.engine.row_account import RowRules
from headrace.engine.row_index import RowIndex
from headrace.engine.token_files import FILES
from tiny import make_tiny_llama, make_tokenizer

TOKENIZER = make_tokenizer()
ROWS = [{"prompt": f"Which? {i}", "completion": f"The {i}th."} for i in range(5)]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(folder: Path, file: Path, out: str = "out", **how: Any) -> Prepared:
    how = {"max_seq_len": 60, "vocab_size": 384, "tokenizer_key": "t", **how}
    cache = DatasetCache(folder / "cache", keep=3)
    return cache.prepare([file], tokenizer=TOKENIZER, out_dir=folder / out, **how)


def tokens(path: Path) -> list[list[int]]:
    dataset = TokenDataset.open(path)
    return [dataset.row(i)[0].tolist() for i in range(dataset.num_rows)]


def test_the_second_data_set_of_the_same_rows_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "rows.jsonl", *ROWS, ROWS[0])
    first = prepare(tmp_path, file)
    monkeypatch.setattr(dataset_cache, "prepare_dataset", None)
    second = prepare(tmp_path, file, "again")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.report == first.report and second.report.duplicates == 1
    assert tokens(tmp_path / "again") == tokens(tmp_path / "out")
    assert second.index.duplicates() == first.index.duplicates()


def test_leaks_are_found_against_training_rows_of_the_cache(tmp_path: Path) -> None:
    file, valid = write(tmp_path / "a.jsonl", *ROWS), write(tmp_path / "b.jsonl", ROWS[3])
    prepare(tmp_path, file)
    training = prepare(tmp_path, file)
    assert training.from_cache
    assert prepare(tmp_path, valid, training=training).report.notes["in_training"].count == 1
    again = prepare(tmp_path, valid, training=training)
    assert again.from_cache and again.report.notes["in_training"].count == 1
    assert not prepare(tmp_path, valid).from_cache, "without training rows it is another report"


CHANGES: list[dict[str, Any]] = [
    {"max_seq_len": 61},
    {"tokenizer_key": "u"},
    {"train_on": "all"},
    {"overlong": "drop"},
    {"columns": {"system": "s"}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_may_change_a_token_makes_another(tmp_path: Path, change: Any) -> None:
    file = write(tmp_path / "rows.jsonl", *ROWS)
    prepare(tmp_path, file)
    assert not prepare(tmp_path, file, **change).from_cache


def test_the_content_decides_and_not_the_time(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", *ROWS)
    prepare(tmp_path, file)
    write(file, *ROWS)
    assert prepare(tmp_path, file).from_cache
    write(file, *ROWS[1:], ROWS[0])
    assert not prepare(tmp_path, file).from_cache


def test_data_sets_that_were_not_used_for_long_go_and_jobs_keep_theirs(tmp_path: Path) -> None:
    for i in range(5):
        prepare(tmp_path, write(tmp_path / f"{i}.jsonl", ROWS[i]), f"out{i}")
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert all(len(tokens(tmp_path / f"out{i}")) == 1 for i in range(5))


@pytest.mark.parametrize("lost", [dataset_cache.INDEX, FILES[0]])
def test_an_entry_that_is_not_whole_is_made_again(tmp_path: Path, lost: str) -> None:
    """Its maker died before it was, or its remover half-way."""
    file = write(tmp_path / "rows.jsonl", *ROWS)
    made = prepare(tmp_path, file)
    (tmp_path / "cache" / made.key / lost).unlink()
    assert not prepare(tmp_path, file).from_cache
    assert prepare(tmp_path, file).from_cache


def test_rows_of_no_use_are_refused_each_time(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", *ROWS, {"prompt": "a"})
    for _ in range(2):
        with pytest.raises(DataProblem, match="line 6"):
            prepare(tmp_path, file)


def test_a_drive_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    file = write(tmp_path / "rows.jsonl", *ROWS)
    prepare(tmp_path, file)
    assert prepare(tmp_path, file, "again").from_cache and len(tokens(tmp_path / "again")) == 5


def test_a_check_tells_what_a_data_set_would_be_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    file = write(folder / "rows.jsonl", *ROWS)
    rules = RowRules(max_seq_len=60, vocab_size=384)
    found = check_dataset([file], tokenizer=TOKENIZER, rules=rules)
    assert list(folder.iterdir()) == [file]
    made = prepare_dataset(
        [file], tokenizer=TOKENIZER, out_dir=tmp_path / "out", max_seq_len=60, vocab_size=384
    )
    assert found == made and made == DataReport.from_dict(json.loads(json.dumps(made.to_dict())))


def test_a_check_goes_on_after_problems_and_ends_when_told(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", *ROWS, {"a": 1}, *ROWS)
    rules = RowRules(max_seq_len=60, vocab_size=384)
    found = check_dataset([file], tokenizer=TOKENIZER, rules=rules)
    assert (found.rows, found.kept, found.bad_rows, found.complete) == (11, 10, 1, True)
    answers = iter([False, False, True])
    partial = check_dataset([file], tokenizer=TOKENIZER, rules=rules, stop=lambda: next(answers))
    assert (partial.rows, partial.complete) == (3, False)


def test_an_index_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    index = RowIndex()
    check_dataset(
        [write(tmp_path / "rows.jsonl", *ROWS, ROWS[1])],
        tokenizer=TOKENIZER,
        rules=RowRules(max_seq_len=60, vocab_size=384),
        index=index,
    )
    index.save(tmp_path / "index.npz")
    loaded = RowIndex.load(tmp_path / "index.npz")
    assert loaded.duplicates() == index.duplicates() and loaded.duplicates().count == 1
    assert loaded.found_in(index).count == 6


def test_a_models_key_changes_with_its_template_and_not_with_its_weights(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0)
    key = model_key(model)
    (model / "model.safetensors").write_bytes(b"other")
    assert model_key(model) == key
    with (model / "chat_template.jinja").open("a") as file:
        file.write(" ")
    assert model_key(model) != key


def test_keys_of_contents_differ_by_name_order_and_option(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 1), write(tmp_path / "b", 1)
    keys = [content_key([a]), content_key([b]), content_key([a, b]), content_key([b, a])]
    keys += [content_key([a], length=1), content_key([a], length=2)]
    assert len(set(keys)) == len(keys) and content_key([a]) == keys[0]
