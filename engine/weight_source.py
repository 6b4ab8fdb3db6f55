"""One way to read weights, whatever the files are."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch

from .model import ModelSpec, RecordLayout
from .model_files import find_gguf
from .safetensors_file import SafetensorsSource


class WeightSource(Protocol):
    """The weights of a model, record by record, in bounded memory."""

    def read_record(self, layout: RecordLayout, target: torch.Tensor) -> None:
        """Fill `target` (float32, 1-D, CPU, `layout.num_elements` long); gaps become zero."""


def open_source(model_dir: Path | str, spec: ModelSpec) -> AbstractContextManager[WeightSource]:
    """Open the weights of the model that `read_model_spec` described, for reading records.

    Raises ModelError when the files no longer fit the spec.
    """
    model_dir = Path(model_dir)
    gguf_path = find_gguf(model_dir)
    if gguf_path is None:
        return SafetensorsSource(model_dir, spec)
    from .gguf_file import GgufSource  # its dequantiser is an optional package

    return GgufSource(gguf_path, spec)
