"""Expressions of users are tried where they can be stopped."""

import re

import pytest

from headrace.engine import name_pattern
from headrace.engine.config import TrainConfig
from headrace.engine.errors import BadSetting
from headrace.engine.lora import chooses
from headrace.engine.methods import method_spec
from headrace.engine.model import ModelSpec
from headrace.engine.name_pattern import MAX_CHARACTERS, fault_of
from headrace.engine.source import read_model_spec
from tiny import make_tiny_llama

NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"]


@pytest.mark.parametrize("pattern", ["(.+)+X", "(.*.*)*X", "(.|.)*X", ".*" * 40 + "X"])
def test_an_expression_that_would_take_for_ever_is_refused(pattern: str) -> None:
    assert "takes too long" in (fault_of(pattern, NAMES) or "")


@pytest.mark.parametrize("pattern", ["(", "a{9999999999}", r"\1", "*a"])
def test_what_is_no_expression_is_told(pattern: str) -> None:
    assert (fault_of(pattern, NAMES) or "").startswith("is no expression: ")


def test_what_cannot_be_tried_is_not_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_pattern, "_CHILD", "raise MemoryError('no room')")
    fault = fault_of("a.*of its own", NAMES) or ""
    assert fault.startswith("cannot be tried: ") and fault.endswith("no room (exit 1)")


def test_a_long_expression_is_refused_at_once() -> None:
    assert "wanted 500 or fewer" in (fault_of("a" * (MAX_CHARACTERS + 1), NAMES) or "")


def test_an_expression_that_is_quick_passes() -> None:
    many = [f"model.layers.{i}.mlp.experts.{j}.up_proj" for i in range(40) for j in range(100)]
    for pattern in (r".*\.(q|v)_proj", r"(?!.*visual).*layers\.(\d+)\..*(?:up|down)_proj"):
        re.compile(pattern)
        assert fault_of(pattern, many) is None


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_llama(folder, tied=True, seed=3)
    return read_model_spec(folder)


def lora_spec(spec: ModelSpec, *targets: str) -> ModelSpec:
    values = {"model": "", "dataset": "", "method": "lora", "lora_targets": targets}
    return method_spec(spec, TrainConfig.from_dict(values))


def test_an_expression_among_names_is_no_name(spec: ModelSpec) -> None:
    """It once passed, and then chose nothing."""
    with pytest.raises(BadSetting, match="is the name of no projection"):
        lora_spec(spec, "q_proj", ".*v_proj")
    found = lora_spec(spec, ".*[qv]_proj").lora
    assert found and chooses(found, NAMES[0]) and not chooses(found, NAMES[1])


def test_a_setting_that_would_take_for_ever_is_named(spec: ModelSpec) -> None:
    with pytest.raises(BadSetting, match="takes too long") as caught:
        lora_spec(spec, "(.+)+X")
    assert caught.value.setting == "lora_targets"
