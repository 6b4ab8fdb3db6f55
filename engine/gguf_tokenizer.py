"""A tokenizer from a GGUF file's metadata: its own token list, merges and rules, no guesses."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from .model_files import ModelError

CONTROL, USER_DEFINED = 3, 4  # token types that are matched whole, before anything else
SPACE = "\u2581"  # how SentencePiece writes a space
# How Llama 3 cuts text before merging: contractions, words, up to 3 digits, punctuation, spaces.
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(metadata: Mapping[str, Any], where: Path) -> Any:
    """The transformers tokenizer that the metadata describes.

    Raises ModelError for a kind that is not known here, and when a special token would not be a
    single id.
    """
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentence_pieces}
    if kind not in builders:
        raise ModelError(_unknown(where, "tokenizer", kind, builders))
    tokens = _tokens(metadata, where)
    tokenizer = builders[kind](metadata, tokens, where)
    special = _add_special_tokens(tokenizer, metadata, tokens)
    _check_single_ids(tokenizer, special, where)
    return _wrap(tokenizer, metadata, tokens, where)


def _unknown(where: Path, what: str, got: Any, known: Mapping[str, Any]) -> str:
    return (
        f"{where}: {what} of kind {got!r}; the kinds known here are {', '.join(known)}; use the "
        f"model's Hugging Face directory, which has a tokenizer.json"
    )


def _tokens(metadata: Mapping[str, Any], where: Path) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise ModelError(f"{where} has no token list; convert the model again, with its vocabulary")
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{where}: its token list names a token twice; convert the model again")
    return tokens


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], where: Path) -> Tokenizer:
    """Byte-level BPE, in the manner of GPT-2; `tokenizer.ggml.pre` says how text is cut first."""
    kind = metadata.get("tokenizer.ggml.pre")
    if kind not in _CUTS:
        raise ModelError(_unknown(where, "pre-tokenizer", kind, _CUTS))
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges", [])]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=kind == "llama-bpe",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[kind]())
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _cut_gpt2() -> list[Any]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


def _cut_smollm() -> list[Any]:
    return [pre_tokenizers.Digits(individual_digits=True), *_cut_gpt2()]


def _cut_llama3() -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(LLAMA3_WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


_CUTS: dict[str, Callable[[], list[Any]]] = {
    "gpt-2": _cut_gpt2,
    "smollm": _cut_smollm,
    "llama-bpe": _cut_llama3,
}


def _sentence_pieces(metadata: Mapping[str, Any], tokens: list[str], where: Path) -> Tokenizer:
    """SentencePiece BPE, in the manner of Llama 2: the best-scored piece is merged first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{where} has no score for each token; convert the model again")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges_by_score(tokens, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def merges_by_score(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best-scored token first."""
    known = set(tokens)
    order = sorted(range(len(tokens)), key=lambda i: -scores[i])
    return [
        (left, right)
        for token in (tokens[i] for i in order)
        for cut in range(1, len(token))
        if (left := token[:cut]) in known and (right := token[cut:]) in known
    ]


def _add_special_tokens(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]
) -> dict[str, int]:
    """Register control and user-defined tokens; returns their ids."""
    types = metadata.get("tokenizer.ggml.token_type", [])
    whole = {
        token: (i, kind)
        for i, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, (_, kind) in whole.items()
        ]
    )
    return {token: i for token, (i, _) in whole.items()}


def _check_single_ids(tokenizer: Tokenizer, special: Mapping[str, int], where: Path) -> None:
    for token, wanted in special.items():
        got = tokenizer.encode(token, add_special_tokens=False).ids
        if got != [wanted]:
            raise ModelError(
                f"{where}: special token {token!r} becomes {got}, wanted the single id {wanted}"
            )


def _wrap(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], where: Path) -> Any:
    """The tokenizer with the names of its special tokens, its template and its first token."""
    from transformers import PreTrainedTokenizerFast

    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {key: metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    bad = {key: i for key, i in ids.items() if i is not None and not 0 <= i < len(tokens)}
    if bad:
        raise ModelError(f"{where}: its special tokens {bad} are not among {len(tokens)} tokens")
    named = {f"{key}_token": tokens[i] for key, i in ids.items() if i is not None}
    starts = metadata.get("tokenizer.ggml.model") == "llama" or _is_llama3(metadata)
    if metadata.get("tokenizer.ggml.add_bos_token", starts) and ids["bos"] is not None:
        bos = named["bos_token"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, ids["bos"])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        model_max_length=metadata["llama.context_length"],
        **named,
    )


def _is_llama3(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("tokenizer.ggml.pre") == "llama-bpe"
