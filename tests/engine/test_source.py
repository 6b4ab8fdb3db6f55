"""Reading a model's layout: what is accepted, what is refused, and what the refusal says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from headrace.engine.model import COMPONENT_ALIGNMENT, ELEMENT_ALIGNMENT, ModelSpec
from headrace.engine.source import (
    ModelError,
    UnknownFamily,
    read_model_spec,
    source_dtype,
    spec_from_config,
)
from tiny import make_tiny_llama


def edit_config(model_dir: Path, **values: Any) -> None:
    path = model_dir / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **values}))


def covered_shapes(spec: ModelSpec) -> dict[str, list[tuple[int, int]]]:
    """For each tensor, the row ranges that records hold of it."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for record in spec.records:
        for param in record.params:
            assert param.shape[1:] == param.full_shape[1:]
            rows = (param.row_start, param.row_start + param.shape[0])
            ranges.setdefault(param.name, []).append(rows)
    return ranges


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_spec_holds_every_parameter_of_transformers_model(
    tmp_path: Path, tied: bool, bias: bool
) -> None:
    make_tiny_llama(tmp_path, tied=tied, seed=0, bias=bias, vocab=1500)
    spec = read_model_spec(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    wanted = {name: tuple(param.shape) for name, param in model.named_parameters()}
    got = {param.name: param.full_shape for record in spec.records for param in record.params}
    assert got == wanted
    assert spec.num_params == sum(param.numel() for param in model.parameters())
    for name, ranges in covered_shapes(spec).items():
        assert ranges[0][0] == 0 and ranges[-1][1] == wanted[name][0], name
        assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False)), name


def test_layer_parameters_come_in_the_order_of_transformers_vectors_behind_matrices(
    tmp_path: Path,
) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0, bias=True)
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    spec = read_model_spec(tmp_path)
    for i, record in enumerate(spec.of_kind("layer")):
        wanted = list(model.model.layers[i].named_parameters())
        matrices = [name for name, values in wanted if values.dim() == 2]
        vectors = [name for name, values in wanted if values.dim() == 1]
        assert [param.name for param in record.params] == [
            f"model.layers.{i}.{name}" for name in matrices + vectors
        ]
        ends = [param.offset + param.num_elements for param in record.params]
        assert record.num_matrix_elements == ends[len(matrices) - 1]  # 64 * 32: no gap behind it


def test_offsets_and_lengths_are_aligned_and_do_not_overlap(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=False, seed=0, hidden=40, head_dim=6, bias=True, vocab=1500)
    for record in read_model_spec(tmp_path).records:
        assert record.num_elements % COMPONENT_ALIGNMENT == 0
        end = 0
        for param in record.params:
            assert param.offset % ELEMENT_ALIGNMENT == 0 and param.offset >= end
            end = param.offset + param.num_elements
        assert end <= record.num_elements


def test_records_are_embedding_layers_norm_and_an_untied_head(tmp_path: Path) -> None:
    for tied in (True, False):
        model_dir = make_tiny_llama(tmp_path / str(tied), tied=tied, seed=0, layers=2, vocab=192)
        names = [record.name for record in read_model_spec(model_dir).records]
        assert names == ["embed.0", "layers.0", "layers.1", "norm"] + ["head.0"] * (not tied)


def test_tables_are_cut_into_even_pieces_no_larger_than_a_third_of_a_layer(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=False, seed=0, vocab=2000)
    spec = read_model_spec(tmp_path)
    limit = spec.of_kind("layer")[0].num_elements // 3
    for kind in ("embedding", "head"):
        rows = [record.params[0].shape[0] for record in spec.records if record.kind == kind]
        assert len(rows) == -(-2000 * 64 // limit) and sum(rows) == 2000
        assert max(rows) - min(rows) <= 1
        assert max(rows) * 64 <= limit
    assert len(read_model_spec(tmp_path, max_record_elements=2**26).of_kind("head")) == 1


def test_spec_carries_sizes_and_the_config_as_read(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    make_tiny_llama(tmp_path, tied=True, seed=0, rope_scaling=rope, head_dim=24)
    spec = read_model_spec(str(tmp_path))
    assert (spec.family, spec.num_layers, spec.hidden_size, spec.tied) == ("llama", 3, 64, True)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 24)
    assert (spec.intermediate_size, spec.max_positions) == (128, 512)
    assert spec.config == json.loads((tmp_path / "config.json").read_text())


def test_absent_optional_values_mean_what_transformers_means_by_them() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    spec = spec_from_config(config)
    assert (spec.num_kv_heads, spec.head_dim, spec.max_positions, spec.tied) == (4, 16, 2048, False)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_source_dtype_is_what_the_files_store(tmp_path: Path, dtype: str) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0, layers=1, dtype=dtype)
    edit_config(tmp_path, dtype="float64")
    assert source_dtype(tmp_path) == dtype


def test_unknown_family_lists_the_known_ones(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0, layers=1)
    edit_config(tmp_path, model_type="mamba")
    with pytest.raises(UnknownFamily, match="'mamba'.*known here are: gemma2, .*llama"):
        read_model_spec(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"head_dim": None, "hidden_size": 66}, "no multiple of num_attention_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"quantization_config": {"bits": 4}}, "quantised weights cannot be trained"),
        ({"intermediate_size": 130}, r"gate_proj.weight has shape \[128, 64\]; wanted \[130, 64\]"),
        ({"num_hidden_layers": 4}, "model.layers.3.self_attn.q_proj.weight is missing"),
        ({"num_hidden_layers": 2}, "9 tensors are not part of a llama model"),
        ({"attention_bias": True}, "self_attn.q_proj.bias is missing"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ],
)
def test_config_that_does_not_fit_is_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0)
    edit_config(tmp_path, **values)
    with pytest.raises(ModelError, match=message):
        read_model_spec(tmp_path)


def test_pickle_only_directory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pytorch_model.bin.*save_pretrained"):
        read_model_spec(tmp_path)


def test_directory_without_a_model_says_what_was_wanted(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no weights; wanted model.safetensors.*found nothing"):
        read_model_spec(tmp_path)
    with pytest.raises(ModelError, match="neither a directory nor a .gguf file"):
        read_model_spec(tmp_path / "absent")
    (tmp_path / "part.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"part.safetensors, which no index names"):
        read_model_spec(tmp_path)


def test_missing_config_is_named(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0, layers=1)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match="config.json is missing"):
        read_model_spec(tmp_path)


def test_reading_a_spec_needs_no_torch(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=0, layers=1)
    code = (
        "import sys; from headrace.engine import read_model_spec; "
        f"read_model_spec({str(tmp_path)!r}); "
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / ".src")},
    )
    assert done.stdout.strip() == "[]"
