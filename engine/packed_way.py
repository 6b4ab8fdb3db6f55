"""How documents of packed rows attend, and whether layers are worth compiling. Pure, no torch."""

from dataclasses import replace
from typing import Literal

from .config import TrainConfig
from .model import ModelSpec

FLASH_MAX_HEAD = 256  # the widest head that the kernel for documents takes


def packed_way(spec: ModelSpec, config: TrainConfig) -> Literal["kernel", "mask", "each"]:
    """How documents attend (attention.py): by a kernel, one by one, or all with a mask."""
    if config.packing == "off":
        return "each"
    half = config.device == "cuda" and config.compute_dtype == "bfloat16"
    if half and not spec.attention_softcap and spec.head_dim <= FLASH_MAX_HEAD:
        return "kernel"
    return "each" if config.compile == "off" else "mask"


def compiles_well(spec: ModelSpec, config: TrainConfig) -> bool:
    """Whether layers are worth compiling unasked: on a GPU, but for those with experts, which stay
    as they are written, and not where packed rows would need a mask for it."""
    if config.device != "cuda" or spec.experts is not None:
        return False
    return packed_way(spec, replace(config, compile="dynamic")) != "mask"
