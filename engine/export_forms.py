"""The forms in which a run's result leaves. No torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .config import TrainConfig
from .methods import without_adapters
from .model import ModelSpec
from .source import source_dtype

ExportFormat = Literal["hf", "adapter", "gguf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportForm:
    """One export of a run: `folder` is its directory in the run's folder."""

    format: ExportFormat
    dtype: str
    folder: str
    model_dir: Path
    assets_dir: Path


def exports_of(config: TrainConfig, spec: ModelSpec) -> list[ExportForm]:
    """The exports that a run makes, the model itself first.

    ModelError for one that this model cannot have: known before it is trained.
    """
    model_dir = Path(config.model)
    assets_dir = Path(config.assets) if config.assets else model_dir

    def form(format: ExportFormat, dtype: str, folder: str) -> ExportForm:
        if dtype == "auto":
            dtype = "float32" if format == "adapter" else source_dtype(model_dir)
        return ExportForm(
            format=format, dtype=dtype, folder=folder, model_dir=model_dir, assets_dir=assets_dir
        )

    adapter = config.method == "lora" and config.lora_export == "adapter"
    forms = [form("adapter" if adapter else "hf", config.export_dtype, "export")]
    if config.export_gguf != "off":
        gguf = form("gguf", config.export_gguf, "export_gguf")
        from .gguf_metadata import file_metadata  # its package is optional

        file_metadata(without_adapters(spec), assets_dir=assets_dir, dtype=gguf.dtype, name="")
        forms.append(gguf)
    return forms
