"""Tokenizers come from the model's files alone; a GGUF file's are made once, and whole."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.engine import gguf_assets
from headrace.engine.export import export_checkpoint
from headrace.engine.model_files import ModelError
from headrace.engine.source import read_model_spec, spec_from_config
from headrace.engine.tokenizer import load_tokenizer, prepare_model
from headrace.engine.weight_source import open_source
from runs import whole_params
from tiny import make_tiny_llama, make_tokenizer
from tiny_gguf import write_gguf

TEXTS = ["The wheel turns the stone.", " 12 sluices,\n\n3 open ", "déjà vu 🌊", "a<|im_end|>b"]


def tiny_gguf(tmp_path: Path, **kwargs: object) -> Path:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=4, layers=1)
    return write_gguf(model_dir, tmp_path / "gguf/tiny.gguf", **kwargs)  # type: ignore[arg-type]


def test_tokenizer_of_a_directory_is_its_own(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=4, layers=1)
    tokenizer, wanted = load_tokenizer(str(tmp_path)), make_tokenizer()
    for text in TEXTS:
        assert tokenizer.encode(text) == wanted.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.chat_template == wanted.chat_template
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)


def test_directory_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer.json; copy it"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_is_a_model_error(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=4, layers=1)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ModelError, match="its tokenizer files cannot be read"):
        load_tokenizer(tmp_path)


def test_code_in_a_model_s_directory_does_not_run(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=4, layers=1)
    (tmp_path / "mine.py").write_text("open('ran', 'w')\nraise SystemExit('code of the model ran')")
    for name in ("tokenizer_config.json", "config.json"):
        values = json.loads((tmp_path / name).read_text())
        values["auto_map"] = {"AutoTokenizer": [None, "mine.Mine"], "AutoConfig": "mine.Mine"}
        (tmp_path / name).write_text(json.dumps(values))
    assert load_tokenizer(tmp_path).encode("a<|im_end|>")[-1] == 2


def test_link_to_another_directory_is_refused(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path / "a", tied=True, seed=4, layers=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/tokenizer.json").symlink_to(tmp_path / "a/tokenizer.json")
    with pytest.raises(ModelError, match="a link that leaves its directory"):
        load_tokenizer(tmp_path / "b")


def test_prepared_directory_of_a_hugging_face_model_is_itself(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path / "model", tied=True, seed=4, layers=1)
    assert prepare_model(tmp_path / "model", tmp_path / "cache") == tmp_path / "model"
    assert not (tmp_path / "cache").exists()


def test_gguf_tokenizer_encodes_as_the_one_it_was_made_from(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    tokenizer = load_tokenizer(prepare_model(path.parent, tmp_path / "cache"))
    wanted = load_tokenizer(tmp_path / "hf")
    messages = [{"role": "user", "content": text} for text in TEXTS]
    for text in TEXTS:
        assert tokenizer.encode(text) == wanted.encode(text), text
    assert tokenizer.apply_chat_template(messages) == wanted.apply_chat_template(messages)
    assert tokenizer.decode([1, 2, 97], skip_special_tokens=True) == wanted.decode([97])


def test_prepared_assets_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path)
    first = prepare_model(path, tmp_path / "cache")
    monkeypatch.setattr(gguf_assets, "build_tokenizer", None)  # calling it would fail
    assert prepare_model(path.parent, tmp_path / "cache") == first
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [first.name]


def test_changed_gguf_gets_new_assets(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    first = prepare_model(path, tmp_path / "cache")
    write_gguf(tmp_path / "hf", path, metadata={"tokenizer.chat_template": "{{ messages }}"})
    second = prepare_model(path, tmp_path / "cache")
    assert second != first and first.exists()
    assert load_tokenizer(second).chat_template == "{{ messages }}"


def test_failed_preparation_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(tmp_path)

    def fail(*args: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(gguf_assets, "_write_json", fail)
    with pytest.raises(OSError, match="no space"):
        prepare_model(path, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_processes_may_prepare_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(tmp_path)
    write_json = gguf_assets._write_json

    def prepare_meanwhile(*args: object) -> None:
        monkeypatch.setattr(gguf_assets, "_write_json", write_json)
        prepare_model(path, tmp_path / "cache")
        write_json(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(gguf_assets, "_write_json", prepare_meanwhile)
    assets_dir = prepare_model(path, tmp_path / "cache")
    assert (assets_dir / "config.json").exists()
    assert list((tmp_path / "cache").iterdir()) == [assets_dir]


def test_export_of_a_gguf_is_a_directory_that_transformers_loads(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, kind="Q8_0")
    spec = read_model_spec(path)
    assets_dir = prepare_model(path, tmp_path / "cache")
    target = tmp_path / "out"

    with open_source(path, spec) as source:
        export_checkpoint(
            target,
            spec,
            assets_dir=assets_dir,
            dtype="bfloat16",
            read_pieces=whole_params(spec, source.read_record),
        )
    model = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}], return_tensors="pt", return_dict=False
    )
    assert torch.isfinite(model(ids).logits).all()
    assert model.generation_config.eos_token_id == 2
    assert read_model_spec(target).records == spec.records
    assert spec_from_config(spec.config).records == spec.records


def test_gguf_with_more_tokens_than_rows_is_refused(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(500)]
    path = tiny_gguf(
        tmp_path,
        metadata={
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 500,
            "tokenizer.ggml.merges": None,
        },
    )
    with pytest.raises(ModelError, match="500 tokens, but only 384 rows of the embedding"):
        prepare_model(path, tmp_path / "cache")
