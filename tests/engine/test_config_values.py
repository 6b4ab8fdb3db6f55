"""A config that lies is refused with the key at fault, before memory is filled or a layer built."""

from typing import Any

import pytest

from headrace.engine import ModelError
from headrace.engine.hf_config import build_config
from headrace.engine.source import spec_from_config
from tiny import tiny_config


def config_with(**values: Any) -> dict[str, Any]:
    return {**tiny_config(tied=True).to_dict(), **values}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**7),
        ("vocab_size", 2 * 10**9),
        ("vocab_size", 10**25),
        ("max_position_embeddings", 10**30),
    ],
)
def test_a_size_that_no_model_has_is_refused_before_memory_is_filled(key: str, value: int) -> None:
    with pytest.raises(ModelError, match=key):
        spec_from_config(config_with(hidden_size=8, intermediate_size=8, **{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", "1e-5"),
        ("rms_norm_eps", None),
        ("rope_theta", -1.0),
        ("rope_theta", "10000"),
        ("hidden_act", "mish-mash"),
        ("hidden_act", None),
        ("attention_dropout", 0.5),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"rope_type": "spiral"}),
        ("rope_scaling", {"rope_type": ["linear"]}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("rope_scaling", {"rope_type": "linear", "factor": "2"}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("inf")}),
        (
            "rope_parameters",
            {"rope_type": "longrope", "short_factor": [], "long_factor": [10**400]},
        ),
    ],
)
def test_a_value_that_nothing_can_be_computed_with_is_refused_by_its_key(
    key: str, value: Any
) -> None:
    with pytest.raises(ModelError, match=key):
        spec_from_config(config_with(**{key: value}))


@pytest.mark.parametrize(
    "rope",
    [
        None,
        {"rope_type": "default", "rope_theta": 10000.0},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
)
def test_the_rotary_kinds_of_llama_are_taken(rope: Any) -> None:
    config = config_with(rope_scaling=rope)
    if rope is not None:
        del config["rope_parameters"]
    build_config(spec_from_config(config))


def test_what_transformers_refuses_is_an_error_of_the_model(tmp_path: Any) -> None:
    spec = spec_from_config(config_with(initializer_range="wide"))
    with pytest.raises(ModelError, match="initializer_range"):
        build_config(spec)
