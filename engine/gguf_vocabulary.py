"""A tokenizer.json as the token lists and rules of a GGUF file; or why it cannot be one.

What is written is read back at once and must cut texts into the same tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .gguf_tokenizer import (
    CONTROL,
    LLAMA3_WORDS,
    QWEN2_WORDS,
    USER_DEFINED,
    build_tokenizer,
)
from .model_files import ModelError, read_json_file
from .tokenizer import TOKENIZER_FILE, load_tokenizer

NORMAL, UNKNOWN, UNUSED, BYTE = 1, 2, 5, 6  # token types, besides those that are matched whole
_NEVER_MERGED = -1e6  # the score of a token that no merge makes: behind all that one does
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "  Two spaces,\ttabs and\n\n\nlines; I'll say it's 1234567.89 or 50%!  ",
    "def f(x): return [x**2 for _ in range(10)]  # a comment\r\n\r\n\tif x:\n        pass",
    "Grüße, émigré, naïve café; Привет мир, 日本語のテキスト 한국어 العربية हिन्दी 🌊🚢 ½ №",
    "WE'RE they've I'm don't HE'D ... ---===>>> <html>&amp;</html> $x_1^2$ a@b.c https://d.e/f?g=h",
)


def token_metadata(assets_dir: Path, *, vocab_size: int, max_tokens: int) -> dict[str, Any]:
    """The tokenizer of a directory in the keys of a GGUF file, with a token for every row.

    Raises ModelError, naming the rule, for a tokenizer that such a file cannot describe.
    """
    tokenizer = load_tokenizer(assets_dir)
    rules = read_json_file(assets_dir, TOKENIZER_FILE)
    where = assets_dir / TOKENIZER_FILE
    model = rules["model"]
    extra = [key for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
             if model.get(key)]  # fmt: skip
    if model.get("type", "BPE") != "BPE" or extra:
        raise _unknown(where, f"a model of type {model.get('type')} {', '.join(extra)}".rstrip())
    pieces = bool(model.get("byte_fallback"))
    found = {
        **_tokens(tokenizer, rules, vocab_size, where),
        **(_sentence_pieces(rules, where) if pieces else _byte_level(rules, where)),
        **_special(tokenizer, where),
    }
    if pieces:
        found["tokenizer.ggml.scores"] = _scores(found["tokenizer.ggml.tokens"], model["merges"])
    else:
        found["tokenizer.ggml.merges"] = [" ".join(_pair(merge)) for merge in model["merges"]]
    _check(tokenizer, found, where, max_tokens)
    return found


def _unknown(where: Path, what: str) -> ModelError:
    return ModelError(
        f"{where}: {what}, which no GGUF tokenizer that is known here has; export the model as hf"
    )


def _pair(merge: Any) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else list(merge)


def _tokens(
    tokenizer: Any, rules: Mapping[str, Any], vocab_size: int, where: Path
) -> dict[str, Any]:
    """Texts and types by id. Rows of the table without a token get one that is never used."""
    by_id = {i: token for token, i in tokenizer.get_vocab().items()}
    if max(by_id) >= vocab_size:
        raise ModelError(
            f"{where} has a token {max(by_id)}, and the embedding {vocab_size} rows; give the "
            f"model a row for each token"
        )
    added = {one["id"]: one for one in rules.get("added_tokens", [])}
    pieces = bool(rules["model"].get("byte_fallback"))
    unknown = tokenizer.unk_token_id

    def kind(i: int, token: str) -> int:
        if pieces and i == unknown:
            return UNKNOWN
        if i in added:
            return CONTROL if added[i]["special"] else USER_DEFINED
        is_byte = pieces and len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        return BYTE if is_byte else NORMAL

    return {
        "tokenizer.ggml.tokens": [by_id.get(i, f"[PAD{i}]") for i in range(vocab_size)],
        "tokenizer.ggml.token_type": [
            kind(i, by_id[i]) if i in by_id else UNUSED for i in range(vocab_size)
        ],
    }


def _byte_level(rules: Mapping[str, Any], where: Path) -> dict[str, Any]:
    normalizer = rules.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":  # readers leave that one out
        raise _unknown(where, f"a normalizer {normalizer.get('type')}")
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": _cut(rules, where)}


def _cut(rules: Mapping[str, Any], where: Path) -> str:
    """The name of the way in which text is cut before merging."""
    rule = rules.get("pre_tokenizer") or {}
    steps = rule.get("pretokenizers", [rule])
    last = {**_BYTE_LEVEL, **steps[-1]}
    use_regex = last.pop("use_regex", True)
    if last == _BYTE_LEVEL or last == {**_BYTE_LEVEL, "trim_offsets": False}:
        if len(steps) == 1 and use_regex:
            return "gpt-2"
        first = steps[0]
        if first.get("type") == "Digits" and first.get("individual_digits") and use_regex:
            return "smollm"
        if len(steps) == 2 and first.get("type") == "Split" and not use_regex:
            words = (first.get("pattern") or {}).get("Regex")
            if words == QWEN2_WORDS:
                return "qwen2"
            if words == LLAMA3_WORDS:
                return "llama-bpe" if rules["model"].get("ignore_merges") else "dbrx"
    raise _unknown(where, f"a pre-tokenizer {rule or None}")


def _sentence_pieces(rules: Mapping[str, Any], where: Path) -> dict[str, Any]:
    normalizer, cut = rules.get("normalizer") or {}, rules.get("pre_tokenizer") or {}
    steps = normalizer.get("normalizers", [normalizer] if normalizer else [])
    kinds = [step.get("type") for step in steps]
    if any(kind not in ("Prepend", "Replace") for kind in kinds):
        raise _unknown(where, f"a normalizer {', '.join(map(str, kinds))}")
    prefix = "Prepend" in kinds or cut.get("prepend_scheme") in ("first", "always")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def _scores(tokens: list[str], merges: list[Any]) -> list[float]:
    """Scores under which the best-scored piece is the one that is merged first.

    tokenizer.json has the order of the merges alone, which is that of the scores they came from.
    """
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(_pair(merge)), rank)
    return [-float(ranks[token]) if token in ranks else _NEVER_MERGED for token in tokens]


def _special(tokenizer: Any, where: Path) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: getattr(tokenizer, f"{key}_token_id") for key, name in names.items()}
    found: dict[str, Any] = {
        f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items() if i is not None
    }
    plain = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a")
    starts = full[: len(full) - len(plain)] == [tokenizer.bos_token_id] and full[1:] == plain
    if full != plain and not starts:
        raise _unknown(where, f"a post-processor that makes {full} of {plain}")
    found["tokenizer.ggml.add_bos_token"] = starts
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if template:
        found["tokenizer.chat_template"] = template
    return found


def _check(tokenizer: Any, found: dict[str, Any], where: Path, max_tokens: int) -> None:
    """Read it back, and cut texts with both."""
    back = build_tokenizer(found, where, max_tokens=max_tokens)
    texts = [*PROBES, *tokenizer.all_special_tokens]
    if found["tokenizer.ggml.model"] == "gpt2":  # pieces: readers put a space behind each of them
        texts.append("x".join(tokenizer.all_special_tokens))
    for text in texts:
        wanted, got = tokenizer.encode(text), back.encode(text)
        if wanted != got:
            raise ModelError(
                f"{where}: read back from the GGUF file's lists, the tokenizer makes {got[:12]} of "
                f"{text[:40]!r}, and should make {wanted[:12]}; export the model as hf"
            )
