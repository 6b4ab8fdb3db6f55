"""The values of a Llama's config that say how to compute, checked before anything is built. Pure.

Sizes are checked where the layout is made of them.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from .model_files import ModelError

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
ROPE_KEYS = {  # kinds of rotary positions, and the keys that each cannot do without
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
}  # fmt: skip


def check_values(config: Mapping[str, Any]) -> None:
    """ModelError for a value that no Llama computes with; absent ones are left to transformers."""
    _check_number(config, "rms_norm_eps", wanted_type=float)
    _check_number(config, "rope_theta")
    _check_dropout(config)
    activation = config.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        wanted = ", ".join(ACTIVATIONS)
        raise ModelError(f"config: hidden_act is {activation!r}; wanted one of {wanted}")
    for key in ("rope_scaling", "rope_parameters"):
        if config.get(key) is not None:
            _check_rope(config[key], key)


def _check_number(
    values: Mapping[str, Any],
    key: str,
    where: str = "config",
    *,
    at_least: float = 0.0,
    wanted_type: Any = (int, float),
) -> None:
    """The number is finite and above 0, if it is there at all."""
    if key not in values:
        return
    value = values[key]
    is_number = isinstance(value, wanted_type) and not isinstance(value, bool)
    if not (is_number and 0 < value < inf and value >= at_least):
        limit = f"of at least {at_least:g}" if at_least else "above 0"
        raise ModelError(f"{where}: {key} is {value!r}; wanted a decimal number {limit}")


def _check_dropout(config: Mapping[str, Any]) -> None:
    """A layer is computed again in the backward pass; what was dropped would not be the same."""
    dropout = config.get("attention_dropout")
    if dropout not in (None, 0):
        raise ModelError(
            f"config: attention_dropout is {dropout!r}; training has no dropout: set it to 0.0"
        )


def _check_rope(values: Any, key: str) -> None:
    where = f"config: {key}"
    if not isinstance(values, Mapping):
        raise ModelError(f"{where} is {values!r}; wanted an object")
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_KEYS:
        raise ModelError(f"{where}: rope_type is {kind!r}; wanted one of {', '.join(ROPE_KEYS)}")
    for name in ROPE_KEYS[kind]:
        if name not in values:
            raise ModelError(f"{where} of type {kind} has no {name}")
    _check_number(values, "rope_theta", where)
    _check_number(values, "low_freq_factor", where)
    _check_number(values, "high_freq_factor", where)
    _check_number(values, "original_max_position_embeddings", where)
    if values.get("factor") is not None:
        _check_number(values, "factor", where, at_least=1.0)
    for name in ("short_factor", "long_factor"):
        _check_factors(values.get(name, [1.0]), f"{where}: {name}")


def _check_factors(factors: Any, where: str) -> None:
    numbers = isinstance(factors, list) and all(type(f) in (int, float) for f in factors)
    if not (numbers and factors and all(0 < f < inf for f in factors)):
        raise ModelError(f"{where} is {str(factors)[:80]}; wanted a list of numbers above 0")
