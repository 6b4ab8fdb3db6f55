"""A tokenizer from a GGUF file's metadata: its own token list, merges and rules, no guesses."""

from collections.abc import Callable, Mapping, Sequence
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
# Qwen 2 differs in that it cuts numbers into digits.
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def build_tokenizer(metadata: Mapping[str, Any], where: Path, *, max_tokens: int) -> Any:
    """The transformers tokenizer that the metadata describes, for texts of `max_tokens` tokens.

    Raises ModelError for a kind that is not known here, for lists that do not fit each other, and
    when a special token would not be a single id.
    """
    from transformers import PreTrainedTokenizerFast

    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise ModelError(_unknown(where, "tokenizer", kind, _BUILDERS))
    tokens = _tokens(metadata, where)
    named = _named_tokens(metadata, tokens, where)
    try:
        tokenizer = _BUILDERS[kind](metadata, tokens, where)
    except ModelError:
        raise
    except Exception as e:  # the tokenizers package raises bare Exception
        raise ModelError(f"{where}: its tokens and merges do not fit each other: {e}") from e
    special = _add_special_tokens(tokenizer, metadata, tokens, where)
    _check_single_ids(tokenizer, special, where)
    _start_with_bos(tokenizer, metadata, named.get("bos_token"))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        model_max_length=max_tokens,
        **named,
    )


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


def _named_tokens(metadata: Mapping[str, Any], tokens: list[str], where: Path) -> dict[str, str]:
    """Texts of the beginning, end, unknown and padding token, as far as there are such."""
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named: dict[str, str] = {}
    for key, name in names.items():
        i = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if i is None:
            continue
        if type(i) is not int or not 0 <= i < len(tokens):
            raise ModelError(f"{where}: its {name} token {i!r} is not one of {len(tokens)} tokens")
        named[f"{key}_token"] = tokens[i]
    return named


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
    return _cut_words(LLAMA3_WORDS)


def _cut_qwen2() -> list[Any]:
    return _cut_words(QWEN2_WORDS)


def _cut_words(words: str) -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(words), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


_CUTS: dict[str, Callable[[], list[Any]]] = {
    "gpt-2": _cut_gpt2,
    "smollm": _cut_smollm,
    "llama-bpe": _cut_llama3,
    "dbrx": _cut_llama3,
    "qwen2": _cut_qwen2,
}


def _sentence_pieces(metadata: Mapping[str, Any], tokens: list[str], where: Path) -> Tokenizer:
    """SentencePiece BPE, in the manner of Llama 2: the best-scored piece is merged first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, Sequence) or len(scores) != len(tokens):
        raise ModelError(f"{where} has no score for each token; convert the model again")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges_by_score(tokens, scores),
            unk_token=tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)],
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


def merges_by_score(tokens: list[str], scores: Sequence[float]) -> list[tuple[str, str]]:
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
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], where: Path
) -> dict[str, int]:
    """Register control and user-defined tokens; returns their ids."""
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, Sequence) or len(types) != len(tokens):
        raise ModelError(f"{where} has no type for each token; convert the model again")
    whole = {
        token: (i, kind)
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
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


def _start_with_bos(tokenizer: Tokenizer, metadata: Mapping[str, Any], bos: str | None) -> None:
    """Put the beginning token first, where the file says so or its kind does by default."""
    default = (
        metadata["tokenizer.ggml.model"] == "llama"
        or metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    )
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", default):
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )


_BUILDERS: dict[Any, Callable[[Mapping[str, Any], list[str], Path], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_pieces,
}
