"""Tiny models that are real in everything but size: config, weights, tokenizer, chat template."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 384
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = [
    "The channel carries the water to the wheel, and the wheel turns the stone.",
    "system user assistant: you are a helpful miller; answer in one short sentence.",
    "How many sluices are open? Three of them, and 12 more are closed until the 4th.",
] * 4


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the ChatML template; every text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_config(
    *,
    tied: bool,
    hidden: int = 64,
    layers: int = 3,
    vocab: int = VOCAB_SIZE,
    bias: bool = False,
    rope_scaling: dict[str, Any] | None = None,
    **overrides: Any,
) -> LlamaConfig:
    """A Llama with two query heads for each key head and an MLP of twice the hidden size."""
    values = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "attention_bias": bias,
        "mlp_bias": bias,
        "rope_scaling": rope_scaling,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return LlamaConfig(**{**values, **overrides})


def make_tiny_llama(
    model_dir: Path,
    *,
    tied: bool,
    seed: int,
    hidden: int = 64,
    layers: int = 3,
    vocab: int = VOCAB_SIZE,
    dtype: str = "float32",
    num_shards: int = 1,
    bias: bool = False,
    rope_scaling: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write a random Llama as a Hugging Face directory and return the directory.

    Norms and biases are random too, so that a test which mixes them up fails.
    """
    config = tiny_config(
        tied=tied, hidden=hidden, layers=layers, vocab=vocab, bias=bias,
        rope_scaling=rope_scaling, **overrides,
    )  # fmt: skip
    return write_model(model_dir, config, seed=seed, dtype=dtype, num_shards=num_shards)


def write_model(
    model_dir: Path,
    config: PreTrainedConfig,
    *,
    seed: int,
    dtype: str = "float32",
    num_shards: int = 1,
) -> Path:
    """Write a random model of the config's family as a Hugging Face directory."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for param in model.parameters():
                param.add_(0.05 * torch.randn_like(param))
    model.to(getattr(torch, dtype)).save_pretrained(model_dir)
    make_tokenizer().save_pretrained(model_dir)
    if num_shards > 1:
        split_into_shards(model_dir, num_shards)
    return model_dir


def split_into_shards(model_dir: Path, num_shards: int) -> None:
    """Replace model.safetensors by that many shards, about equal in tensors, and an index."""
    tensors = load_file(model_dir / "model.safetensors")
    (model_dir / "model.safetensors").unlink()
    names = sorted(tensors)
    per_shard = math.ceil(len(names) / num_shards)
    weight_map: dict[str, str] = {}
    for i in range(num_shards):
        shard = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i * per_shard : (i + 1) * per_shard]}
        save_file(part, model_dir / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
