"""What a method freezes and adds is what was asked for, or the run is refused."""

from typing import Any

import pytest

from headrace.engine import BadSetting, TrainConfig
from headrace.engine.methods import method_spec
from headrace.engine.model import ELEMENT_ALIGNMENT, ModelSpec
from headrace.engine.source import spec_from_config
from tiny import tiny_config


def spec(**values: Any) -> ModelSpec:
    return spec_from_config(tiny_config(tied=False, layers=3, **values).to_dict())


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(model="m", dataset="d", **settings)


def lora(**settings: Any) -> ModelSpec:
    return method_spec(spec(), config(method="lora", lora_rank=4, **settings))


def trained_names(found: ModelSpec) -> list[str]:
    return [param.name for record in found.trained for param in record.params]


def test_full_training_without_patterns_changes_nothing() -> None:
    assert method_spec(spec(), config()) == spec()


def test_lora_freezes_every_weight_and_trains_two_small_matrices_beside_each_projection() -> None:
    found = lora()
    plain = spec()
    assert [record.name for record in found.records[: len(plain.records)]] == [
        record.name for record in plain.records
    ]
    assert all(record.base == "float32" for record in found.records[: len(plain.records)])
    assert [record.name for record in found.trained] == [f"layers.{i}.lora" for i in range(3)]
    first = {param.name: param.shape for param in found.trained[0].params}
    assert len(first) == 2 * 7
    assert first["model.layers.0.mlp.down_proj.lora_A.weight"] == (4, 128)
    assert first["model.layers.0.mlp.down_proj.lora_B.weight"] == (64, 4)
    assert all(param.offset % ELEMENT_ALIGNMENT == 0 for param in found.trained[0].params)
    assert found.num_trained_params + plain.num_params == found.num_params


@pytest.mark.parametrize(
    ("targets", "modules"),
    [
        (("q_proj", "v_proj"), {"self_attn.q_proj", "self_attn.v_proj"}),
        (("self_attn.o_proj",), {"self_attn.o_proj"}),
        ((r".*\.1\.mlp\.(up|down)_proj",), {"mlp.up_proj", "mlp.down_proj"}),
    ],
)
def test_targets_are_chosen_as_peft_chooses_them(
    targets: tuple[str, ...], modules: set[str]
) -> None:
    found = lora(lora_targets=targets)
    chosen = {name.split(".", 3)[3].rsplit(".lora_", 1)[0] for name in trained_names(found)}
    assert chosen == modules
    layers = {record.layer for record in found.trained}
    assert layers == ({"layers.1"} if "1" in targets[0] else {"layers.0", "layers.1", "layers.2"})


@pytest.mark.parametrize(
    ("alpha", "rslora", "scaling"), [(8.0, False, 2.0), (8.0, True, 4.0), (1.0, False, 0.25)]
)
def test_scaling_is_alpha_over_rank_or_over_its_root(
    alpha: float, rslora: bool, scaling: float
) -> None:
    found = lora(lora_alpha=alpha, lora_rslora=rslora)
    assert found.lora is not None and found.lora.scaling == scaling


def test_frozen_weights_are_stored_as_exactly_as_they_are_used() -> None:
    def base(is_bfloat16: bool, compute: Any) -> str | None:
        from dataclasses import replace

        given = replace(spec(), is_bfloat16=is_bfloat16)
        settings = config(method="lora", compute_dtype=compute)
        return method_spec(given, settings).records[0].base

    assert base(True, "float32") == base(True, "bfloat16") == "bfloat16"
    assert base(False, "bfloat16") == "bfloat16"
    assert base(False, "float32") == "float32"


def test_a_frozen_pattern_freezes_records_and_splits_layers() -> None:
    patterns = ("model.embed_tokens.*", "model.layers.0.*", "*.mlp.*")
    found = method_spec(spec(), config(freeze=patterns))
    frozen = [record for record in found.records if record.base]
    layers = [record.name for record in frozen if record.kind == "layer"]
    assert layers == ["layers.0", "layers.1", "layers.2"]
    assert {record.kind for record in frozen} == {"embedding", "layer"}
    beside = [record for record in found.trained if record.kind == "beside"]
    assert [record.layer for record in beside] == ["layers.1", "layers.2"]
    assert not any(".mlp." in name for name in trained_names(found))
    every = {param.name for record in spec().records for param in record.params}
    kept = {param.name for record in found.records for param in record.params}
    assert kept == every and found.num_params == spec().num_params


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ("model.embed.*",)}, "'model.embed.*' is the name of no parameter"),
        ({"freeze": ("*",)}, "leaves nothing to train"),
        ({"method": "lora", "lora_targets": ("qkv_proj",)}, "'qkv_proj' is the name of no"),
        ({"method": "lora", "lora_targets": ("q_proj", "all-linear")}, "'all-linear' stands alone"),
        ({"method": "lora", "lora_targets": ("q_proj", "lm_head")}, "'lm_head' is the name of no"),
        ({"method": "lora", "lora_targets": ("(",)}, "no expression"),
    ],
)
def test_what_is_in_vain_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        method_spec(spec(), config(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lora", "freeze": ("*",)}, "freezes the whole model already"),
        ({"clip_mode": "none", "max_grad_norm": 0.5}, "0.5, but clip_mode none clips nothing"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"lora_alpha": 0.0}, "lora_alpha"),
        ({"lora_targets": ()}, "lora_targets is empty"),
        ({"lora_targets": ("q_proj", "")}, "lora_targets"),
        ({"method": "dora"}, "method is 'dora'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_settings_come_back_from_json() -> None:
    import json

    given = config(freeze=("a.*",), lora_targets=("q_proj", "k_proj"), volumes=("/v",))
    again = TrainConfig.from_dict(json.loads(json.dumps(given.to_dict())))
    assert again == given
    assert json.loads(json.dumps(given.numerics_key)) == given.numerics_key
