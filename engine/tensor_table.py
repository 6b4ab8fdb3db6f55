"""Where each tensor of a checkpoint lies, and whether that is what a model wants. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from .model import EMBEDDING, HEAD, ModelSpec
from .model_files import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor inside a file. `dtype` is the file format's own name, `start` a byte offset."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def check_tensors(
    spec: ModelSpec, entries: Mapping[str, TensorEntry], dtypes: Collection[str], where: Path
) -> None:
    """Every tensor of the spec is there, in the right shape and a dtype that can be read.

    `entries` go by checkpoint name. Tensors that the model does not have are refused too: they
    would be lost in the export. Raises ModelError.
    """
    wanted = {param.name: param.full_shape for record in spec.records for param in record.params}
    for name, shape in wanted.items():
        if name not in entries:
            raise ModelError(
                f"{where}: tensor {name} is missing (wanted shape {list(shape)}); the config does "
                f"not fit the weights, or a file was left out: copy the model again"
            )
        _check_entry(entries[name], name, shape, dtypes)
    extra = sorted(name for name in entries if name not in wanted and not _is_derived(spec, name))
    if extra:
        raise ModelError(
            f"{where}: {len(extra)} tensors are not part of a {spec.family} model with this "
            f"config, among them {', '.join(extra[:3])}; adapters and other heads must be merged "
            f"or removed, and biases switched on in config.json"
        )


def _is_derived(spec: ModelSpec, name: str) -> bool:
    """Stored by some exporters although it follows from the rest of the model."""
    return name.endswith(".rotary_emb.inv_freq") or (spec.tied and name == HEAD)


def _check_entry(
    entry: TensorEntry, name: str, shape: tuple[int, ...], dtypes: Collection[str]
) -> None:
    if entry.shape != shape:
        raise ModelError(
            f"{entry.path}: tensor {name} has shape {list(entry.shape)}; wanted {list(shape)} by "
            f"the model's config; config and weights are of different models"
        )
    if entry.dtype not in dtypes:
        raise ModelError(
            f"{entry.path}: tensor {name} is stored as {entry.dtype}; wanted one of "
            f"{', '.join(dtypes)}; convert the checkpoint first"
        )


def tied_copies(
    spec: ModelSpec, entries: Mapping[str, TensorEntry]
) -> tuple[TensorEntry, TensorEntry] | None:
    """Embedding and head of a tied model whose files hold both; they must then be equal."""
    if spec.tied and HEAD in entries:
        return entries[EMBEDDING], entries[HEAD]
    return None
