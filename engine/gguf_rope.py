"""Rotary positions in GGUF files: scaling by metadata, and Llama 3's frequency factors."""

import struct
from collections.abc import Mapping
from math import pi
from pathlib import Path
from typing import Any

from .gguf_header import GgufHeader
from .gguf_names import ROPE_FACTORS
from .model_files import ModelError

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


def read_float(
    values: Mapping[str, Any], key: str, where: Path, default: float | None = None
) -> float:
    """A float32 of the metadata, as the shortest decimal that means the same float32."""
    value = values.get(key, default)
    if not isinstance(value, float):
        raise ModelError(f"{where}: {key} is {value!r}; wanted a number")
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((d for d in decimals if _float32(d) == _float32(value)), value)


def _float32(value: float) -> bytes:
    return struct.pack("<f", value)


def rope_scaling(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rope_scaling of the config: from metadata, or from Llama 3's frequency factors."""
    values, where = header.metadata, header.path
    scaling_of = f"{values['general.architecture']}.rope.scaling"
    if ROPE_FACTORS in header.entries:
        return _llama3_scaling(_read_factors(header), config, where)
    kind = values.get(f"{scaling_of}.type", "none")
    if kind == "none":
        return None
    tuned = [key for key in values if key.startswith(f"{scaling_of}.yarn_")]
    if kind not in ("linear", "yarn") or tuned or f"{scaling_of}.attn_factor" in values:
        raise ModelError(
            f"{where}: rope scaling {kind!r} {tuned or ''}; wanted none, linear, plain yarn or "
            f"Llama 3's; use the model's safetensors, which state it in full"
        )
    scaling = {"rope_type": kind, "factor": read_float(values, f"{scaling_of}.factor", where)}
    original = values.get(f"{scaling_of}.original_context_length")
    if kind == "yarn" and original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _read_factors(header: GgufHeader) -> list[float]:
    entry = header.entries[ROPE_FACTORS]
    if entry.dtype != "F32" or len(entry.shape) != 1:
        raise ModelError(f"{header.path}: {ROPE_FACTORS} is {entry.dtype} {list(entry.shape)}")
    with entry.path.open("rb") as file:
        file.seek(entry.start)
        return list(struct.unpack(f"<{entry.shape[0]}f", file.read(entry.num_bytes)))


def _llama3_scaling(
    factors: list[float], config: Mapping[str, Any], where: Path
) -> dict[str, Any] | None:
    """Llama 3.1 to 3.3 differ in the factor alone; the file keeps only the resulting factors."""
    if all(factor == 1 for factor in factors):
        return None
    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": round(max(factors), 4),
        **LLAMA3,
    }
    wanted = [
        llama3_factor(scaling, config["rope_theta"] ** (i / len(factors)))
        for i in range(len(factors))
    ]
    if any(abs(a - b) > 1e-3 * b for a, b in zip(factors, wanted, strict=True)):
        raise ModelError(
            f"{where}: {ROPE_FACTORS} holds frequency factors other than Llama 3's; use the "
            f"model's safetensors, whose config states the rope scaling"
        )
    return scaling


def llama3_factor(scaling: Mapping[str, Any], period: float) -> float:
    """What Llama 3.1 divides the rotary frequency 1 / `period` by (Llama 3.1's model card code).

    Wavelengths below original / high_freq_factor keep their frequency, those above original /
    low_freq_factor are stretched by `factor`, and those between are interpolated.
    """
    turns = scaling["original_max_position_embeddings"] / (2 * pi * period)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
    return float(1 / ((1 - smooth) / scaling["factor"] + smooth))
