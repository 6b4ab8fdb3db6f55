"""Reading what a model is, from its config and the headers of its files. No torch, no weights.

A model is a Hugging Face directory with safetensors, or one GGUF file.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .families import FAMILIES, unknown_family
from .model import ModelSpec
from .model_files import ModelError, UnknownFamily, find_gguf, read_json_file
from .safetensors_header import FLOAT_DTYPES, SourceDtype, read_checkpoint
from .tensor_table import check_tensors

__all__ = ["ModelError", "UnknownFamily", "read_model_spec", "source_dtype"]


def read_model_spec(model_dir: Path | str, *, max_record_elements: int = 0) -> ModelSpec:
    """The model in a directory (or .gguf file), checked against the headers of its files.

    Tables are cut into row pieces of at most `max_record_elements` elements, or of a third of a
    layer where that is more. Raises UnknownFamily, and ModelError when a file is missing, cut
    short, inconsistent or of another model.
    """
    model_dir = Path(model_dir)
    gguf_path = find_gguf(model_dir)
    if gguf_path is not None:
        from .gguf_model import read_gguf_model  # its dequantiser needs an optional package

        return read_gguf_model(gguf_path, max_record_elements).spec
    spec = spec_from_config(read_json_file(model_dir, "config.json"), max_record_elements)
    entries = read_checkpoint(model_dir)
    check_tensors(spec, entries, FLOAT_DTYPES, model_dir)
    dtypes = {entries[param.name].dtype for record in spec.records for param in record.params}
    return replace(spec, is_bfloat16=dtypes == {"BF16"})


def spec_from_config(config: Mapping[str, Any], max_record_elements: int = 0) -> ModelSpec:
    """The layout that a config.json describes; UnknownFamily or ModelError."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise unknown_family(f"model_type is {family!r}")
    if config.get("quantization_config"):
        raise ModelError(
            "config.json has a quantization_config: quantised weights cannot be trained; "
            "use the original checkpoint, or one converted back to bfloat16"
        )
    return FAMILIES[family].spec(config, max_record_elements)


def source_dtype(model_dir: Path | str) -> SourceDtype:
    """The dtype of most of the checkpoint's elements; for GGUF "bfloat16". Reads headers only."""
    model_dir = Path(model_dir)
    if find_gguf(model_dir) is not None:
        return "bfloat16"
    num_bytes: Counter[str] = Counter()
    for entry in read_checkpoint(model_dir).values():
        if entry.dtype in FLOAT_DTYPES:
            num_bytes[entry.dtype] += entry.num_bytes
    if not num_bytes:
        raise ModelError(f"{model_dir}: holds no floating-point tensor")
    return FLOAT_DTYPES[max(num_bytes, key=lambda dtype: num_bytes[dtype])]
