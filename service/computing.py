"""How a job's layers compute where its request leaves that open."""

from collections.abc import Mapping
from typing import Any

from headrace.engine import ModelSpec, TrainConfig, compiles_well

from .site import Site


def compute_dtype(body: Mapping[str, Any], site: Site) -> Any:
    """The compute dtype that a body asks for, or the usual one of the device."""
    return body.get("compute_dtype") or ("float32" if site.device == "cpu" else "bfloat16")


def compiles(
    spec: ModelSpec, body: Mapping[str, Any], asked: Mapping[str, Any], site: Site
) -> bool:
    """Whether layers are compiled unless the hyperparameters `asked` for say otherwise."""
    config = TrainConfig(
        model="",
        dataset="",
        device=site.device,
        compute_dtype=compute_dtype(body, site),
        packing=asked.get("packing") or "on",
    )
    return site.compiles and compiles_well(spec, config)
