"""GGUF exports hold the model: our own reader and transformers find the same logits in them."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.engine import export_gguf as module
from headrace.engine.export import export_checkpoint
from headrace.engine.export_gguf import export_gguf
from headrace.engine.gguf_file import halves_first, pairs_first
from headrace.engine.gguf_header import read_gguf_header
from headrace.engine.model import RecordLayout
from headrace.engine.model_files import ModelError
from headrace.engine.source import read_model_spec
from headrace.engine.weight_source import open_source
from headrace.storage import NoSpace
from runs import whole_params
from tiny import make_tiny_llama
from tiny_families import WINDOW
from tiny_gguf import interleaved
from tiny_gguf_families import CASES, LLAMA3, export_copy, write_case

# transformers' reader leaves out biases, rope scaling, partial rotary positions and Mixtral's
# experts, and does not know OLMo 2.
TRANSFORMERS_READS = ("mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text")
KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}


def read_back(path: Path, source: Path) -> Any:
    """transformers' model of the file, with config and weights from our own reader."""
    spec = read_model_spec(path)
    with open_source(path, spec) as weights:
        export_checkpoint(
            path.parent / "hf", spec, assets_dir=source, dtype="float32",
            read_pieces=whole_params(spec, weights.read_record),
        )  # fmt: skip
    return AutoModelForCausalLM.from_pretrained(path.parent / "hf")


def logits(model: Any) -> torch.Tensor:
    """Of two rows, longer than a window."""
    found = model(torch.arange(2 * 24).view(2, 24) % 300).logits
    assert isinstance(found, torch.Tensor)
    return found.detach()


@pytest.mark.parametrize("case", CASES)
def test_our_own_reader_gives_the_same_logits(tmp_path: Path, case: str) -> None:
    source = write_case(tmp_path / "hf", case)
    path = export_copy(source, tmp_path / "out", dtype="float32")
    wanted = logits(AutoModelForCausalLM.from_pretrained(source))
    assert (logits(read_back(path, source)) - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("case", TRANSFORMERS_READS)
def test_transformers_reads_it_with_the_same_logits(tmp_path: Path, case: str) -> None:
    source = write_case(tmp_path / "hf", case)
    path = export_copy(source, tmp_path / "out", dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    wanted = logits(AutoModelForCausalLM.from_pretrained(source))
    assert (logits(model) - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q8_0"])
def test_weights_are_rounded_once_and_no_further(tmp_path: Path, dtype: str) -> None:
    """Matrices are what the gguf package makes of them, vectors and routers exact."""
    source = write_case(tmp_path / "hf", "mixtral")
    path = export_copy(source, tmp_path / "out", dtype=dtype)
    original, spec, kind = read_model_spec(source), read_model_spec(path), KINDS[dtype]
    with open_source(source, original) as given, open_source(path, spec) as got:
        for record in original.records:
            values, back = torch.empty(2, record.num_elements)
            given.read_record(record, values)
            got.read_record(record, back)
            for param in record.params:
                part = slice(param.offset, param.offset + param.num_elements)
                wanted = values[part].view(param.shape).numpy()
                if wanted.ndim == 2 and not param.name.endswith(".gate.weight"):
                    coded = gguf.quantize(wanted, gguf.GGMLQuantizationType[kind])
                    wanted = gguf.dequantize(coded, gguf.GGMLQuantizationType[kind])
                assert np.array_equal(back[part].view(param.shape).numpy(), wanted), param.name


def test_rows_that_are_no_whole_blocks_are_float16(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "hf", tied=True, seed=2, hidden=40, layers=1, head_dim=16)
    entries = read_gguf_header(export_copy(source, tmp_path / "out", dtype="q8_0")).entries
    assert entries["blk.0.attn_q.weight"].dtype == "F16"
    assert entries["blk.0.attn_output.weight"].dtype == "Q8_0"  # rows of 64
    assert entries["blk.0.attn_norm.weight"].dtype == "F32"


def test_any_cut_into_pieces_gives_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tiny_llama(tmp_path / "hf", tied=False, seed=2, vocab=1500)
    whole = export_copy(source, tmp_path / "a", dtype="q8_0", pieces=2**26)
    monkeypatch.setattr(module, "PIECE_ELEMENTS", 200)
    cut = export_copy(source, tmp_path / "b", dtype="q8_0")
    assert whole.name == "model-Q8_0.gguf" and whole.read_bytes() == cut.read_bytes()


def test_queries_and_keys_come_in_pairs_as_llama_cpp_turns_them(tmp_path: Path) -> None:
    rows = np.arange(64.0).reshape(32, 2)
    assert np.array_equal(pairs_first(rows, 16), interleaved(rows, 16))
    assert np.array_equal(halves_first(pairs_first(rows, 8), 8), rows)


def test_template_and_special_tokens_come_with_it(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "hf", tied=True, seed=2, layers=1, vocab=400)
    values = read_gguf_header(export_copy(source, tmp_path / "out", dtype="float32")).metadata
    assert values["tokenizer.chat_template"] == (source / "chat_template.jinja").read_text()
    assert (
        values["tokenizer.ggml.eos_token_id"] == 2 and len(values["tokenizer.ggml.tokens"]) == 400
    )
    assert values["general.name"] == "tiny" and values["llama.context_length"] == 512


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("mistral", {"sliding_window": WINDOW}, "a window of 8 tokens; readers would attend"),
        ("mistral", {"hidden_act": "gelu"}, "the activation 'gelu'"),
        ("qwen3", {"attention_bias": True}, "no tensor for .*q_proj.bias"),
        ("gemma2", {"query_pre_attn_scalar": 20}, r"query_pre_attn_scalar 20 \(not 256\)"),
        ("gemma2", {"attn_logit_softcapping": None}, "without a cap"),
        ("gemma2", {"tie_word_embeddings": False}, "no tensor for lm_head.weight"),
        ("gemma3_text", {"sliding_window_pattern": 2}, "windows in other layers"),
        ("gemma3_text", {"final_logit_softcapping": 3.0}, "capped logits"),
        ("gemma3_text", {"rope_local_base_freq": 5000.0}, "rotary positions of windowed layers"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "no tensor for .*layers.1.mlp.gate_proj"),
        ("qwen3_moe", {"norm_topk_prob": False}, "do not sum to one"),
        ("llama-3", {"rope_parameters": {**LLAMA3, "low_freq_factor": 2.0}}, "other bounds"),
        (
            "qwen2-yarn",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0}},
            "rope scaling 'yarn' beta_fast",
        ),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_a_gguf_file_cannot_say_is_refused(
    tmp_path: Path, case: str, changes: dict[str, Any], message: str
) -> None:
    source = write_case(tmp_path / "hf", case, **changes)
    with pytest.raises(ModelError, match=f"(?s){message}.*xport .*hf"):
        export_copy(source, tmp_path / "out", dtype="float32")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dtype", "value"), [("float16", 1e5), ("q8_0", 1e7), ("float32", float("nan"))]
)
def test_weight_that_the_type_cannot_hold_leaves_nothing_behind(
    tmp_path: Path, dtype: str, value: float
) -> None:
    source = make_tiny_llama(tmp_path / "hf", tied=True, seed=2, layers=1)
    spec = read_model_spec(source)

    def one_large(layout: RecordLayout, target: torch.Tensor) -> None:
        target.zero_()
        target[7] = value

    with pytest.raises(ModelError, match="embed_tokens.weight holds a value of .*cannot hold"):
        export_gguf(
            tmp_path / "exports/out", spec, assets_dir=source, name="tiny", dtype=dtype,
            read_pieces=whole_params(spec, one_large),
        )  # fmt: skip
    assert list((tmp_path / "exports").iterdir()) == []


def test_too_little_space_is_found_before_the_data_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tiny_llama(tmp_path / "hf", tied=True, seed=2, layers=1)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(NoSpace, match=r"wants \d+ bytes in .*, 1000 are free"):
        export_copy(source, tmp_path / "out", dtype="float32")
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "hf", tied=True, seed=2, layers=1)
    with pytest.raises(ValueError, match="'q4_0'; wanted one of float32, float16, bfloat16, q8_0"):
        export_copy(source, tmp_path / "out", dtype="q4_0")
