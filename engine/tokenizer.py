"""The tokenizer of a model, from its files alone: nothing remote, no code of the model's."""

from pathlib import Path
from typing import Any

from .model_files import ModelError, file_inside, find_gguf

TOKENIZER_FILE = "tokenizer.json"
OPTIONAL_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                  "chat_template.jinja")  # fmt: skip


def load_tokenizer(model_dir: Path | str) -> Any:
    """The fast tokenizer of a directory, exactly as its tokenizer.json says.

    Its class is transformers' general one, so that no rule of a family overrides the file, and no
    code from the directory runs. Raises ModelError when a file is missing or broken.
    """
    from transformers import PreTrainedTokenizerFast

    model_dir = Path(model_dir)
    if not (model_dir / TOKENIZER_FILE).exists():
        raise ModelError(
            f"{model_dir} has no {TOKENIZER_FILE}; copy it from the model's origin, or make it "
            f"with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    for name in (TOKENIZER_FILE, *OPTIONAL_FILES):
        if name == TOKENIZER_FILE or (model_dir / name).exists():
            file_inside(model_dir, name)
    try:
        return PreTrainedTokenizerFast.from_pretrained(
            str(model_dir), local_files_only=True, trust_remote_code=False
        )
    except Exception as e:  # the parser in Rust raises bare Exception
        raise ModelError(f"{model_dir}: its tokenizer files cannot be read: {e}") from e


def prepare_model(model_dir: Path | str, cache_dir: Path) -> Path:
    """A directory with config.json, tokenizer, chat template and generation config of the model.

    That is `model_dir` itself for a Hugging Face directory. For a GGUF file it is made once under
    `cache_dir`, atomically, and again whenever the file's metadata changes. Raises ModelError.
    """
    model_dir = Path(model_dir)
    gguf_path = find_gguf(model_dir)
    if gguf_path is None:
        return model_dir
    from .gguf_assets import prepare_assets

    return prepare_assets(gguf_path, cache_dir)
