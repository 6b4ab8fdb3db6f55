"""Tiny GGUF files, made from tiny Hugging Face directories the way llama.cpp's converter does."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}


def gguf_name(name: str) -> str:
    """A tensor's name in GGUF files."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def interleaved(rows: Any, head_dim: int) -> Any:
    """Query or key rows with the two halves of each head shuffled into pairs."""
    half = head_dim // 2
    order = [
        head + offset + part * half
        for head in range(0, len(rows), head_dim)
        for offset in range(half)
        for part in (0, 1)
    ]
    return rows[order]


def stored_tensors(model_dir: Path) -> dict[str, Any]:
    """The model's weights as float32, by checkpoint name, with rows in GGUF's order."""
    config = json.loads((model_dir / "config.json").read_text())
    tensors = {}
    for name, tensor in load_file(model_dir / "model.safetensors").items():
        values = tensor.float().numpy()
        rotary = ".q_proj." in name or ".k_proj." in name
        tensors[name] = interleaved(values, config["head_dim"]) if rotary else values
    return tensors


def quantised(values: Any, kind: str) -> tuple[Any, Any]:
    """A tensor's bytes and type: matrices in that type, vectors in float32."""
    chosen = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
    return gguf.quantize(values, chosen), chosen


def token_metadata(model_dir: Path, vocab_size: int) -> dict[str, Any]:
    """Token list, types and merges of a byte-level tokenizer, filled up to the table's rows."""
    model = json.loads((model_dir / "tokenizer.json").read_text())
    by_id = {i: token for token, i in model["model"]["vocab"].items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(vocab_size)]
    special = {token["content"] for token in model["added_tokens"]}
    types = [3 if t in special else 5 if i not in by_id else 1 for i, t in enumerate(tokens)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (model_dir / "chat_template.jinja").read_text(),
    }


def model_metadata(model_dir: Path) -> dict[str, Any]:
    """What the converter writes about a Llama."""
    config = json.loads((model_dir / "config.json").read_text())
    return {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        **token_metadata(model_dir, config["vocab_size"]),
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Write a value under the type that llama.cpp uses for it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write_gguf(
    model_dir: Path,
    path: Path,
    *,
    kind: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    family: str = "llama",
) -> Path:
    """Write the model as a GGUF file. `metadata` (None removes) and `tensors` change it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, family)
    for key, value in {**model_metadata(model_dir), **(metadata or {})}.items():
        if value is not None:
            add_value(writer, key, value)
    for name, values in stored_tensors(model_dir).items():
        data, chosen = quantised(values, kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=chosen)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
