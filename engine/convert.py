"""A model as one GGUF file: written in bounded memory, read back and compared."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.storage import sync_directory

from .export_check import NUM_PROMPTS, PROMPT_TOKENS, compare, mismatch, put_aside, write_report
from .export_forms import ExportForm
from .export_gguf import export_gguf, file_name
from .export_reader import pieces_of
from .gguf_vocabulary import PROBES
from .model_files import ModelError, find_gguf
from .source import read_model_spec, source_dtype
from .tokenizer import load_tokenizer, prepare_model
from .weight_source import open_source

SUFFIX = ".gguf"


def convert_model(model: Path, target: Path, *, dtype: str) -> dict[str, Any]:
    """Write the model of a Hugging Face directory or a GGUF file as one GGUF file.

    `target` must not exist. A name that ends in .gguf is the file's own; any other is a directory
    to make, with the file and the report in it. `dtype` is that of its matrices: auto (the model's
    own; of a GGUF file bfloat16), float32, float16, bfloat16 or q8_0. The logits of three texts,
    computed from the model and from the file, must differ by no more than the rounding does.
    Returns the report. Raises ModelError, ExportMismatch, FileExistsError and NoSpace.
    """
    check_target(model, target)
    with _scratch(target) as (scratch, folder):
        assets_dir = prepare_model(model, scratch)
        spec = read_model_spec(model)
        form = ExportForm(
            format="gguf",
            dtype=source_dtype(model) if dtype == "auto" else dtype,
            folder=folder.name,
            model_dir=model,
            assets_dir=assets_dir,
        )
        with open_source(model, spec) as source:
            read_pieces = pieces_of(source, spec)
            export_gguf(
                folder,
                spec,
                assets_dir=assets_dir,
                name=model.stem if model.is_file() else model.name,
                dtype=form.dtype,
                read_pieces=read_pieces,
            )
            prompts = _prompts(assets_dir, spec.max_positions)
            device = torch.device("cpu")
            found = compare(folder, form, spec, read_pieces, prompts, device=device)
        report = write_report(folder, form, found, step=None)
        if not found.matches:
            kept = put_aside(folder, target)
            hint = "Look at the drive that holds it, and convert again"
            raise mismatch(kept, form, found, hint=hint)
        if folder != target:
            (folder / file_name(form.dtype)).rename(target)
            sync_directory(target.parent)
            report["files"] = [{**file, "name": target.name} for file in report["files"]]
    return report


def check_target(model: Path, target: Path) -> None:
    """ModelError for a place that cannot take the file of that model; FileExistsError where
    something is."""
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} exists already; name one that does not")
    if target.suffix in (".safetensors", ".bin", ".pt", ".pth"):
        raise ModelError(
            f"{target}: a model is converted to GGUF alone; name a {SUFFIX} file, or a directory "
            "to make"
        )
    home = find_gguf(model)
    folder = model if home is None else home.parent
    if model.is_dir() and target.absolute().is_relative_to(folder.absolute()):
        raise ModelError(
            f"{target} lies in the directory of the model itself, which would hold two models "
            "then; name a place outside"
        )


@contextmanager
def _scratch(target: Path) -> Iterator[tuple[Path, Path]]:
    """A directory beside the target, for the time being, and the one that the file is made in."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
        yield Path(name), (Path(name) / "file" if target.suffix == SUFFIX else target)


def _prompts(assets_dir: Path, most: int) -> Sequence[Tensor]:
    tokenizer = load_tokenizer(assets_dir)
    ids = [tokenizer.encode(text)[: min(PROMPT_TOKENS, most)] for text in PROBES[:NUM_PROMPTS]]
    return [torch.tensor(one) for one in ids]
