"""A tokenizer.json becomes the lists of a GGUF file that cut texts alike; or it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from headrace.engine.gguf_tokenizer import LLAMA3_WORDS, QWEN2_WORDS, SPACE, build_tokenizer
from headrace.engine.gguf_vocabulary import PROBES, token_metadata
from headrace.engine.model_files import ModelError

SPECIAL = ["<unk>", "<s>", "</s>"]
ROWS = 700  # of the embedding
TEXTS = [*PROBES, "the mill, the wheel and the millstone; the water turns the wheel"] * 3


def words(pattern: str) -> list[Any]:
    """Text cut by an expression, its bytes then written as letters."""
    return [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


PLAIN: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
CUTS: dict[str, list[Any]] = {
    "gpt-2": PLAIN,
    "smollm": [pre_tokenizers.Digits(individual_digits=True), *PLAIN],
    "qwen2": words(QWEN2_WORDS),
    "dbrx": words(LLAMA3_WORDS),
    "llama-bpe": words(LLAMA3_WORDS),
}


def byte_level(cut: list[Any], *, ignore_merges: bool = False) -> Tokenizer:
    """A trained byte-level BPE."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = cut[0] if len(cut) == 1 else pre_tokenizers.Sequence(cut)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def sentence_pieces(*, prefix: bool) -> Tokenizer:
    """A trained BPE over pieces, with a token for every byte, as converted from SentencePiece."""
    steps = [normalizers.Prepend(SPACE)] if prefix else []
    normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.Split(SPACE, behavior="merged_with_next")
    trained.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        ),
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True,
            byte_fallback=True,
        )
    )  # fmt: skip
    tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def save(folder: Path, tokenizer: Tokenizer, **changes: Any) -> Path:
    """As a model's directory has it."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **changes
    )
    fast.save_pretrained(folder)
    return folder


def written(folder: Path, *, rows: int = ROWS) -> dict[str, Any]:
    """What the GGUF file would hold."""
    return token_metadata(folder, vocab_size=rows, max_tokens=512)


@pytest.mark.parametrize("kind", CUTS)
def test_byte_level_rules_are_named_as_llama_cpp_names_them(tmp_path: Path, kind: str) -> None:
    tokenizer = byte_level(CUTS[kind], ignore_merges=kind == "llama-bpe")
    found = written(save(tmp_path, tokenizer))
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("gpt2", kind)
    assert not found["tokenizer.ggml.add_bos_token"]
    back = build_tokenizer(found, tmp_path, max_tokens=512)
    for text in TEXTS:
        assert back.encode(text) == tokenizer.encode(text).ids


@pytest.mark.parametrize("prefix", [True, False])
def test_scores_of_sentence_pieces_follow_from_the_order_of_merges(
    tmp_path: Path, prefix: bool
) -> None:
    tokenizer = sentence_pieces(prefix=prefix)
    found = written(save(tmp_path, tokenizer))
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.add_space_prefix"] is prefix
    assert found["tokenizer.ggml.add_bos_token"]
    types = found["tokenizer.ggml.token_type"]
    assert types[0] == 2 and types[1:3] == [3, 3] and types[3:259] == [6] * 256
    back = build_tokenizer(found, tmp_path, max_tokens=512)
    for text in TEXTS:
        assert back.encode(text) == tokenizer.encode(text).ids


def test_rows_without_a_token_get_one_that_is_never_used(tmp_path: Path) -> None:
    folder = save(tmp_path, byte_level(PLAIN))
    tokens, types = (written(folder)[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    assert len(tokens) == len(types) == ROWS
    assert tokens[-1] == f"[PAD{ROWS - 1}]" and types[-1] == 5
    with pytest.raises(ModelError, match="has a token 49., and the embedding 400 rows"):
        written(folder, rows=400)


def test_token_that_a_user_added_is_no_control_token(tmp_path: Path) -> None:
    tokenizer = byte_level(PLAIN)
    tokenizer.add_tokens(["<tool>"])
    found = written(save(tmp_path, tokenizer))
    assert found["tokenizer.ggml.token_type"][found["tokenizer.ggml.tokens"].index("<tool>")] == 4


def test_of_several_templates_the_default_one_is_written(tmp_path: Path) -> None:
    templates = {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"}
    folder = save(tmp_path, byte_level(PLAIN), chat_template=templates)
    assert written(folder)["tokenizer.chat_template"] == "{{ 1 }}"


def unigram() -> Tokenizer:
    """Pieces by likelihood, which no family here has."""
    return Tokenizer(models.Unigram([("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("a", -1.0)], 0))


def other_cut() -> Tokenizer:
    """Cut at white space alone."""
    return byte_level([pre_tokenizers.WhitespaceSplit(), *PLAIN])


def lower_case() -> Tokenizer:
    """Everything in small letters."""
    tokenizer = byte_level(PLAIN)
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def ends_texts() -> Tokenizer:
    """An end token behind every text."""
    tokenizer = byte_level(PLAIN)
    tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unigram, "a model of type Unigram"),
        (other_cut, "a pre-tokenizer .*WhitespaceSplit"),
        (lower_case, "a normalizer Lowercase"),
        (ends_texts, "a post-processor that makes"),
    ],
)
def test_rules_that_no_gguf_file_has_are_refused_by_name(
    tmp_path: Path, make: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=f"{message}.*export the model as hf"):
        written(save(tmp_path, make()))


def test_lists_that_would_cut_texts_otherwise_are_refused(tmp_path: Path) -> None:
    """Readers merge any two pieces that make a third; a merge left out cannot be told."""
    folder = save(tmp_path, sentence_pieces(prefix=True))
    path = folder / "tokenizer.json"
    rules = json.loads(path.read_text())
    rules["model"]["merges"] = rules["model"]["merges"][:3]
    path.write_text(json.dumps(rules))
    with pytest.raises(ModelError, match="the tokenizer makes .* and should make"):
        written(folder)
