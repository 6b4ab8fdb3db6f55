"""Tokenizers from GGUF metadata: text is cut and merged by the rules of the file's own kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from headrace.engine.gguf_tokenizer import build_tokenizer, merges_by_score
from headrace.engine.model_files import ModelError

WHERE = Path("model.gguf")
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
SPACE = "\u2581"
BYTES = [f"<0x{i:02X}>" for i in range(256)]
WORDS = "the wheel turns and the mill grinds the flour in the old town by the water".split()


def build(metadata: dict[str, Any]) -> Any:
    return build_tokenizer(metadata, WHERE, max_tokens=512)


def byte_letters() -> list[str]:
    """The 256 letters by which byte-level tokenizers write bytes."""
    return sorted(ByteLevel.alphabet())


def byte_level(pre: str, merged: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer whose merges build the given pieces letter by letter."""
    pieces = [piece[:stop] for piece in merged for stop in range(2, len(piece) + 1)]
    tokens = ["<|end|>", *byte_letters(), *dict.fromkeys(pieces)]
    merges = [f"{piece[:-1]} {piece[-1]}" for piece in dict.fromkeys(pieces)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] + [NORMAL] * (len(tokens) - 1),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
        **{f"tokenizer.{key}": value for key, value in changes.items()},
    }


def sentence_pieces(**changes: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece tokenizer with prefixes of a few words as its pieces."""
    prefixes = [f"{SPACE}{word}"[:stop] for word in WORDS for stop in range(2, len(word) + 2)]
    inner = [word[start:stop] for word in WORDS for start in (0, 1) for stop in range(2, 4)]
    letters = [SPACE, *sorted(set("".join(WORDS)))]
    pieces = [p for p in dict.fromkeys(inner + prefixes) if len(p) > 1]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces, *letters]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(pieces) + len(letters))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def merge_best_first(text: str, metadata: dict[str, Any]) -> Iterator[str]:
    """SentencePiece's BPE, slowly: the neighbours that make the best-scored piece are joined."""
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True))
    parts = list(SPACE + text.replace(" ", SPACE))
    while True:
        joins = [(scores[a + b], -i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
                 if a + b in scores]  # fmt: skip
        if not joins:
            break
        i = -max(joins)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    for part in parts:
        yield from [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]


@pytest.mark.parametrize(
    ("pre", "text", "wanted"),
    [
        ("gpt-2", "ab 1234", ["ab", "Ġ1234"]),
        ("smollm", "ab 1234", ["ab", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", "ab1234", ["ab", "123", "4"]),
        ("llama-bpe", "ab ab", ["ab", "Ġab"]),
    ],
)
def test_text_is_cut_by_the_rules_of_the_file_s_kind(
    pre: str, text: str, wanted: list[str]
) -> None:
    tokenizer = build(byte_level(pre, ("ab", "Ġab", "Ġ1234", "1234")))
    assert tokenizer.tokenize(text) == wanted
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama3_takes_a_whole_word_of_its_list_without_merging() -> None:
    metadata = byte_level("llama-bpe", ("xyz",))
    metadata["tokenizer.ggml.merges"] = []
    assert build(metadata).tokenize("xyz") == ["xyz"]
    metadata["tokenizer.ggml.pre"] = "gpt-2"
    assert build(metadata).tokenize("xyz") == ["x", "y", "z"]


@pytest.mark.parametrize("text", ["the wheel turns", "flour, in  the mill", "Wasserrad 水車", ""])
def test_sentence_pieces_are_merged_best_score_first(text: str) -> None:
    metadata = sentence_pieces()
    tokenizer = build(metadata)
    wanted = list(merge_best_first(text, metadata)) if text else []
    assert tokenizer.tokenize(text) == wanted
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_merges_are_every_split_in_order_of_score() -> None:
    assert merges_by_score(["a", "b", "ab", "ba", "aba"], [0, 0, -2, -1, -3]) == [
        ("b", "a"),
        ("a", "b"),
        ("a", "ba"),
        ("ab", "a"),
    ]


def test_beginning_token_comes_first_where_the_file_or_its_kind_says_so() -> None:
    no: dict[str, Any] = {"tokenizer.ggml.add_bos_token": False}
    assert build(sentence_pieces()).encode("the")[0] == 1
    assert build(sentence_pieces(**no)).encode("the")[0] != 1
    bos: dict[str, Any] = {"ggml.bos_token_id": 0}
    assert build(byte_level("llama-bpe", **bos)).encode("a")[0] == 0
    assert build(byte_level("gpt-2", **bos)).encode("a")[0] != 0
    yes: dict[str, Any] = {"ggml.add_bos_token": True}
    assert build(byte_level("gpt-2", **bos, **yes)).encode("a")[0] == 0


def test_space_is_prefixed_unless_the_file_says_otherwise() -> None:
    plain = build(sentence_pieces(**{"tokenizer.ggml.add_space_prefix": False}))
    assert plain.tokenize("the")[0][0] != SPACE
    assert plain.decode(plain.encode(" the"), skip_special_tokens=True) == " the"


def test_control_tokens_are_single_ids_and_left_out_on_request() -> None:
    tokenizer = build(byte_level("gpt-2"))
    ids = tokenizer.encode("a<|end|>b")
    assert ids[1] == 0 and len(ids) == 3
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert tokenizer.eos_token == "<|end|>" and tokenizer.model_max_length == 512


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml.model": "bert"}, "tokenizer of kind 'bert'; the kinds known here are gpt2, llama"),
        ({"ggml.pre": "tekken"}, "'tekken'; the kinds known here are gpt-2, smollm"),
        ({"ggml.tokens": []}, "has no token list"),
        ({"ggml.tokens": ["a", "a"]}, "names a token twice"),
        ({"ggml.token_type": [1]}, "has no type for each token"),
        ({"ggml.merges": ["a b c"]}, "its tokens and merges do not fit each other"),
        ({"ggml.merges": ["absent ones"]}, "its tokens and merges do not fit each other"),
        ({"ggml.eos_token_id": 99999}, "its eos token 99999 is not one of 257 tokens"),
    ],
)
def test_metadata_that_makes_no_tokenizer_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as refusal:
        build(byte_level("gpt-2", **changes))
    assert str(WHERE) in str(refusal.value)


def test_sentence_pieces_without_scores_are_refused() -> None:
    with pytest.raises(ModelError, match="has no score for each token"):
        build(sentence_pieces(**{"tokenizer.ggml.scores": [0.0]}))
