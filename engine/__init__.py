"""Layers, steps and plans: fine-tuning a model layer by layer, through the tensor store.

The public names are imported on first use: planning and configuration need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import MAX_LEARNING_RATE, NUM_ANSWERS, Objective, StrategyName, TrainConfig
from .errors import (
    BadSetting,
    ExportMismatch,
    MemoryGone,
    NotFinite,
    Refusal,
    Setting,
    SettingsChanged,
    StateLost,
)
from .model import ModelSpec, ParamSpec, RecordLayout
from .report import (
    FEWEST_ROWS,
    OUTCOME_OF,
    ROW_LOSS_KINDS,
    LinkReport,
    Look,
    RunEvent,
    RunResult,
    StepReport,
    StopReason,
    Traffic,
    Watch,
)

if TYPE_CHECKING:
    from .account import JobSize
    from .adamw_cpu import CpuKernel, cpu_kernel
    from .advice import plan_report
    from .bench import bench_step
    from .box import available_memory, detect_box, known_rates
    from .box_file import BadBoxFile, read_box, shipped_boxes
    from .calibration import calibrate_compute
    from .capacity import Box, CannotFit
    from .content import content_key, model_key
    from .convert import convert_model
    from .cores import usable_cores
    from .data import TokenDataset
    from .dataset_cache import DatasetCache, Prepared
    from .demo_data import DemoData, write_demo_data
    from .export_forms import exports_of
    from .fit import fit_microbatch
    from .flops import passed_params
    from .heap import fix_thresholds
    from .host_optimizer import measure_cpu_optimizer
    from .meter import Progress
    from .methods import method_spec
    from .nearest import Nearest, nearest_fit
    from .packed_way import compiles_well
    from .packing import RowLengths, settle_microbatch
    from .parquet_rows import too_much_memory
    from .plan import Plan, make_plan
    from .prepare import (
        DataProblem,
        DataReport,
        FormCheck,
        RowFile,
        RowIndex,
        check_dataset,
        check_rows,
        prepare_dataset,
    )
    from .rates import Prices, Rates
    from .row_account import RowRules
    from .row_order import num_steps
    from .rows import COLUMN_KEYS, check_columns
    from .run import run_job
    from .schemes import compare_schemes
    from .shapes import SHAPES, shape_spec
    from .source import ModelError, UnknownFamily, read_model_spec, source_dtype
    from .strategies import STRATEGIES, StrategyConflict
    from .strategy_bench import bench_strategies
    from .tokenizer import load_tokenizer, prepare_model

_HOMES = {
    "CpuKernel": "adamw_cpu",
    "cpu_kernel": "adamw_cpu",
    "measure_cpu_optimizer": "host_optimizer",
    "convert_model": "convert",
    "usable_cores": "cores",
    "fix_thresholds": "heap",
    "JobSize": "account",
    "Nearest": "nearest",
    "nearest_fit": "nearest",
    "passed_params": "flops",
    "plan_report": "advice",
    "BadBoxFile": "box_file",
    "read_box": "box_file",
    "shipped_boxes": "box_file",
    "method_spec": "methods",
    "Prices": "rates",
    "Rates": "rates",
    "compare_schemes": "schemes",
    "SHAPES": "shapes",
    "available_memory": "box",
    "bench_step": "bench",
    "STRATEGIES": "strategies",
    "StrategyConflict": "strategies",
    "bench_strategies": "strategy_bench",
    "detect_box": "box",
    "known_rates": "box",
    "calibrate_compute": "calibration",
    "shape_spec": "shapes",
    "content_key": "content",
    "model_key": "content",
    "DatasetCache": "dataset_cache",
    "Prepared": "dataset_cache",
    "Progress": "meter",
    "TokenDataset": "data",
    "num_steps": "row_order",
    "DemoData": "demo_data",
    "exports_of": "export_forms",
    "write_demo_data": "demo_data",
    "Box": "capacity",
    "CannotFit": "capacity",
    "Plan": "plan",
    "RowLengths": "packing",
    "settle_microbatch": "packing",
    "fit_microbatch": "fit",
    "compiles_well": "packed_way",
    "too_much_memory": "parquet_rows",
    "make_plan": "plan",
    "DataProblem": "prepare",
    "DataReport": "prepare",
    "FormCheck": "prepare",
    "RowFile": "prepare",
    "RowIndex": "prepare",
    "check_dataset": "prepare",
    "check_rows": "prepare",
    "RowRules": "row_account",
    "check_columns": "rows",
    "COLUMN_KEYS": "rows",
    "prepare_dataset": "prepare",
    "run_job": "run",
    "ModelError": "source",
    "UnknownFamily": "source",
    "read_model_spec": "source",
    "source_dtype": "source",
    "load_tokenizer": "tokenizer",
    "prepare_model": "tokenizer",
}

__all__ = [
    "BadBoxFile",
    "BadSetting",
    "Box",
    "COLUMN_KEYS",
    "CannotFit",
    "CpuKernel",
    "DataProblem",
    "DataReport",
    "DatasetCache",
    "DemoData",
    "ExportMismatch",
    "FEWEST_ROWS",
    "FormCheck",
    "JobSize",
    "LinkReport",
    "Look",
    "MAX_LEARNING_RATE",
    "MemoryGone",
    "ModelError",
    "ModelSpec",
    "NUM_ANSWERS",
    "Nearest",
    "NotFinite",
    "OUTCOME_OF",
    "Objective",
    "ParamSpec",
    "Plan",
    "Prepared",
    "Prices",
    "Progress",
    "Rates",
    "RecordLayout",
    "Refusal",
    "RowFile",
    "RowIndex",
    "RowRules",
    "RowLengths",
    "ROW_LOSS_KINDS",
    "RunEvent",
    "RunResult",
    "SHAPES",
    "STRATEGIES",
    "Setting",
    "SettingsChanged",
    "StateLost",
    "StepReport",
    "StopReason",
    "StrategyConflict",
    "StrategyName",
    "TokenDataset",
    "Traffic",
    "TrainConfig",
    "UnknownFamily",
    "Watch",
    "available_memory",
    "bench_step",
    "bench_strategies",
    "calibrate_compute",
    "check_columns",
    "check_dataset",
    "check_rows",
    "content_key",
    "model_key",
    "compare_schemes",
    "convert_model",
    "cpu_kernel",
    "detect_box",
    "compiles_well",
    "exports_of",
    "fit_microbatch",
    "fix_thresholds",
    "known_rates",
    "load_tokenizer",
    "make_plan",
    "measure_cpu_optimizer",
    "method_spec",
    "nearest_fit",
    "num_steps",
    "passed_params",
    "plan_report",
    "prepare_dataset",
    "prepare_model",
    "read_box",
    "read_model_spec",
    "run_job",
    "settle_microbatch",
    "shape_spec",
    "shipped_boxes",
    "source_dtype",
    "too_much_memory",
    "usable_cores",
    "write_demo_data",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"headrace.engine has no public name {name!r}")
