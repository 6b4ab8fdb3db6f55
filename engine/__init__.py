"""Layers, steps and plans: fine-tuning a model layer by layer, through the tensor store.

The public names are imported on first use: planning and configuration need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import TrainConfig
from .model import ModelSpec, ParamSpec, RecordLayout
from .report import LinkReport, RunEvent, RunResult, StepReport

if TYPE_CHECKING:
    from .bench import bench_step
    from .data import TokenDataset
    from .plan import Box, CannotFit, Plan, make_plan
    from .prepare import DataReport, prepare_dataset
    from .run import run_job
    from .source import ModelError, UnknownFamily, read_model_spec, source_dtype
    from .weights import export_store, import_model

_HOMES = {
    "bench_step": "bench",
    "TokenDataset": "data",
    "Box": "plan",
    "CannotFit": "plan",
    "Plan": "plan",
    "make_plan": "plan",
    "DataReport": "prepare",
    "prepare_dataset": "prepare",
    "run_job": "run",
    "ModelError": "source",
    "UnknownFamily": "source",
    "read_model_spec": "source",
    "source_dtype": "source",
    "export_store": "weights",
    "import_model": "weights",
}

__all__ = [
    "Box",
    "CannotFit",
    "DataReport",
    "LinkReport",
    "ModelError",
    "ModelSpec",
    "ParamSpec",
    "Plan",
    "RecordLayout",
    "RunEvent",
    "RunResult",
    "StepReport",
    "TokenDataset",
    "TrainConfig",
    "UnknownFamily",
    "bench_step",
    "export_store",
    "import_model",
    "make_plan",
    "prepare_dataset",
    "read_model_spec",
    "run_job",
    "source_dtype",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"headrace.engine has no public name {name!r}")
