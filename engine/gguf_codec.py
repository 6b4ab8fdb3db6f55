"""Values as GGUF files keep them: rows of float32 to bytes, by the gguf package."""

from typing import Any

import numpy as np

from .gguf_header import load_gguf_package
from .model_files import ModelError

# By the name of the export's dtype: the type of matrices, and the file's own number of the kind.
TYPES = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}


def type_of(dtype: str, num_columns: int, *, exact: bool) -> str:
    """The type that a tensor is kept in: vectors and routers are float32, and rows that are no
    whole number of blocks float16, as llama.cpp has them."""
    wanted = "F32" if exact else TYPES[dtype][0]
    if num_columns % load_gguf_package().GGML_QUANT_SIZES[_kind(wanted)][0]:
        return "F16"
    return wanted


def row_bytes(kind: str, num_columns: int) -> int:
    """Bytes of a row of so many elements."""
    elements, num_bytes = load_gguf_package().GGML_QUANT_SIZES[_kind(kind)]
    return num_columns // int(elements) * int(num_bytes)


def encode(rows: Any, kind: str, name: str) -> Any:
    """The bytes of float32 rows (count, columns), as uint8 (count, bytes).

    Raises ModelError for a value that the type cannot hold, naming the tensor.
    """
    largest = float(np.abs(rows).max())  # a NaN stays one
    limit = 65504.0 * (127 if kind == "Q8_0" else 1)  # a block's scale is a float16
    if not largest <= (limit if kind in ("F16", "Q8_0") else 3.3e38):
        raise ModelError(
            f"tensor {name} holds a value of {largest:.4g}, which {kind} cannot hold; export as "
            f"bfloat16 or float32, and look at the training loss if it is not finite"
        )
    coded = load_gguf_package().quantize(np.ascontiguousarray(rows), _kind(kind))
    return np.ascontiguousarray(coded).view(np.uint8).reshape(len(rows), -1)


def _kind(name: str) -> Any:
    return load_gguf_package().GGMLQuantizationType[name]
