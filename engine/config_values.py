"""Values of a config.json, read with the key at fault in every refusal. Pure.

Whoever sent the model wrote them: they are judged before memory is filled or a layer built.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

from .model_files import ModelError

MAX_COUNT = 2**31 - 1  # of anything that a config counts
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

Config = Mapping[str, Any]


def count(config: Config, key: str, default: int | None = None) -> int:
    """A whole number from 1; `default` where the key is absent or null, if there is one."""
    value = config.get(key)
    if value is None and default is not None:
        value = default
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise ModelError(f"config: {key} is {value!r}; wanted a whole number from 1 to {MAX_COUNT}")
    return value


def flag(config: Config, key: str, default: bool = False) -> bool:
    """True or false; `default` where the key is absent or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"config: {key} is {value!r}; wanted true or false")
    return default if value is None else value


def number(config: Config, key: str, default: float | None) -> float | None:
    """A number above 0, or null for none; `default` where the key is absent."""
    value = config.get(key, default)
    if value is None:
        return None
    check_number({key: value}, key)
    return float(value)


def refuse(config: Config, key: str, why: str) -> None:
    """ModelError when the key holds anything that counts as true."""
    if config.get(key):
        raise ModelError(f"config: {key} is {config[key]!r}; {why}")


def check_computing(
    config: Config,
    *,
    activation: str = "hidden_act",
    dropouts: Collection[str] = ("attention_dropout",),
    ropes: Collection[str] = tuple(ROPE_KEYS),
    rope_per_kind: Collection[str] = (),
) -> None:
    """ModelError for a value that the family cannot compute with; absent ones are the family's.

    `activation` is the key of the activation, `ropes` the kinds of rotary positions that there
    are, `rope_per_kind` the kinds of layers that may have rotary positions of their own.
    """
    check_number(config, "rms_norm_eps", wanted_type=float)
    check_number(config, "rope_theta")
    for key in dropouts:
        # A layer is computed again in the backward pass; what was dropped would not be the same.
        refuse(config, key, "training has no dropout: set it to 0.0")
    chosen = config.get(activation, ACTIVATIONS[0])
    if chosen not in ACTIVATIONS:
        raise ModelError(
            f"config: {activation} is {chosen!r}; wanted one of {', '.join(ACTIVATIONS)}"
        )
    for key in ("rope_scaling", "rope_parameters"):
        values = config.get(key)
        if isinstance(values, Mapping) and values and set(values) <= set(rope_per_kind):
            for kind, own in values.items():
                _check_rope(own, f"{key}: {kind}", ropes)
        elif values is not None:
            _check_rope(values, key, ropes)


def check_number(
    values: Config,
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


def _check_rope(values: Any, key: str, ropes: Collection[str]) -> None:
    where = f"config: {key}"
    if not isinstance(values, Mapping):
        raise ModelError(f"{where} is {values!r}; wanted an object")
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or kind not in ropes:
        raise ModelError(f"{where}: rope_type is {kind!r}; wanted one of {', '.join(ropes)}")
    for name in ROPE_KEYS[kind]:
        if name not in values:
            raise ModelError(f"{where} of type {kind} has no {name}")
    check_number(values, "rope_theta", where)
    check_number(values, "low_freq_factor", where)
    check_number(values, "high_freq_factor", where)
    check_number(values, "original_max_position_embeddings", where)
    if values.get("factor") is not None:
        check_number(values, "factor", where, at_least=1.0)
    for name in ("short_factor", "long_factor"):
        _check_factors(values.get(name, [1.0]), f"{where}: {name}")


def _check_factors(factors: Any, where: str) -> None:
    numbers = isinstance(factors, list) and all(type(f) in (int, float) for f in factors)
    if not (numbers and factors and all(0 < f < inf for f in factors)):
        raise ModelError(f"{where} is {str(factors)[:80]}; wanted a list of numbers above 0")
