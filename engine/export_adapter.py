"""Adapters as a directory that peft loads: adapter_config.json and adapter_model.safetensors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from .export import ReadPieces, write_directory
from .lora import ALL_LINEAR, DOWN
from .model import EXPERTS, Lora, ModelSpec
from .shards import Shard

FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."  # peft's name of the model that the adapters are for


def export_adapter(
    target_dir: Path,
    spec: ModelSpec,
    *,
    assets_dir: Path,
    base_name: str,
    dtype: str,
    read_pieces: ReadPieces,
) -> None:
    """Write the adapters to `target_dir`, which must not exist; as `export_checkpoint` does.

    `base_name` is what the adapters' config calls the model. `read_pieces` see there.
    """
    assert spec.lora is not None
    records = spec.of_kind("beside")
    params = tuple(
        replace(param, name=PREFIX + param.name) for record in records for param in record.params
    )
    write_directory(
        target_dir,
        [Shard(file_name=FILE, params=params, dtype=dtype)],
        (piece for record in records for piece in read_pieces(record)),
        {"adapter_config.json": _config(spec, spec.lora, base_name)},
        assets_dir=assets_dir,
    )


def _config(spec: ModelSpec, lora: Lora, base_name: str) -> dict[str, Any]:
    """peft's LoraConfig of the adapters; what it says nothing of is as peft has it by default."""
    alpha = int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha
    return {
        "base_model_name_or_path": base_name,
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "use_rslora": lora.rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": _targets(spec, lora),
    }


def _targets(spec: ModelSpec, lora: Lora) -> list[str] | str:
    """Last parts of the projections' names, or the expression that chose them: peft would look in
    vain for what one chooses of experts, which transformers has in stacks."""
    if len(lora.targets) > 1:
        return list(lora.targets)
    records = spec.of_kind("beside")
    names = {
        param.name.removesuffix(f".{DOWN}").rsplit(".", 1)[-1]
        for record in records
        for param in record.params
        if param.name.endswith(DOWN)
    }
    (target,) = lora.targets
    if target == ALL_LINEAR or any(EXPERTS in p.name for r in records for p in r.params):
        return sorted(names)
    return [target] if target in names else target
