"""A model's directory as one GGUF file: written in bounded memory, read back and compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .export_check import PROMPT_TOKENS, compare, mismatch, put_aside, write_report
from .export_forms import ExportForm
from .export_gguf import export_gguf
from .export_reader import pieces_of
from .gguf_vocabulary import PROBES
from .source import read_model_spec, source_dtype
from .tokenizer import load_tokenizer
from .weight_source import open_source

NUM_PROMPTS = 3


def convert_model(model_dir: Path, target_dir: Path, *, dtype: str) -> dict[str, Any]:
    """Write the model of a Hugging Face directory to `target_dir`, which must not exist.

    `dtype` is that of its matrices: auto (the model's own), float32, float16, bfloat16 or q8_0.
    The logits of three texts, computed from the directory and from the file, must differ by no
    more than the rounding does. Returns the report that lies beside the file. Raises ModelError,
    ExportMismatch, FileExistsError and NoSpace.
    """
    spec = read_model_spec(model_dir)
    form = ExportForm(
        format="gguf",
        dtype=source_dtype(model_dir) if dtype == "auto" else dtype,
        folder=target_dir.name,
        model_dir=model_dir,
        assets_dir=model_dir,
    )
    with open_source(model_dir, spec) as source:
        read_pieces = pieces_of(source, spec)
        export_gguf(
            target_dir,
            spec,
            assets_dir=model_dir,
            name=model_dir.name,
            dtype=form.dtype,
            read_pieces=read_pieces,
        )
        prompts = _prompts(model_dir, spec.max_positions)
        device = torch.device("cpu")
        found = compare(target_dir, form, spec, read_pieces, prompts, device=device)
    report = write_report(target_dir, form, found, step=None)
    if not found.matches:
        hint = "Look at the drive that holds it, and convert again"
        error = mismatch(target_dir, form, found, hint=hint)
        put_aside(target_dir)
        raise error
    return report


def _prompts(model_dir: Path, most: int) -> Sequence[Tensor]:
    tokenizer = load_tokenizer(model_dir)
    ids = [tokenizer.encode(text)[: min(PROMPT_TOKENS, most)] for text in PROBES[:NUM_PROMPTS]]
    return [torch.tensor(one) for one in ids]
