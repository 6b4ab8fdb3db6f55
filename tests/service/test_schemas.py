from typing import Any

import pytest

from headrace.service.errors import ApiError, did_you_mean
from headrace.service.hyperparameter_fields import Hyperparameters
from headrace.service.schemas import CreateJob, parse_create

ADAPTER = "method.supervised.hyperparameters.adapter"
BODY: dict[str, Any] = {"model": "tiny", "training_file": "file-1"}


def supervised(**hyperparameters: Any) -> dict[str, Any]:
    """A method object."""
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


def refused(**changed: Any) -> ApiError:
    """How a body with `changed` is refused."""
    with pytest.raises(ApiError) as caught:
        parse_create(BODY | changed)
    assert caught.value.status == 400
    return caught.value


def hyperparameters(body: dict[str, Any]) -> Any:
    """What a body asks for."""
    return parse_create(BODY | body).body()["method"]["supervised"]["hyperparameters"]


def test_two_fields_are_enough() -> None:
    assert parse_create(BODY).body() == BODY | {"method": supervised()}


def test_auto_and_null_mean_not_given() -> None:
    nulls = dict.fromkeys(("seed", "suffix", "metadata", "validation_file", "integrations"))
    asked = {"method": supervised(n_epochs="auto", batch_size=None, max_steps=4)}
    assert parse_create(BODY | nulls).body() == parse_create(BODY).body()
    assert hyperparameters(asked) == {"max_steps": 4}


@pytest.mark.parametrize("values", [{}, {"n_epochs": 2}, {"clip_mode": "lagged", "n_epochs": 1}])
def test_the_deprecated_form_means_the_same(values: dict[str, Any]) -> None:
    assert hyperparameters({"hyperparameters": values}) == values
    both = {"hyperparameters": values, "method": supervised(**values)}
    assert hyperparameters(both) == values


def test_both_forms_that_differ_are_refused() -> None:
    error = refused(hyperparameters={"n_epochs": 2}, method=supervised(n_epochs=3))
    assert (error.param, error.code) == ("hyperparameters", "conflicting_hyperparameters")


@pytest.mark.parametrize(
    ("changed", "param", "guess"),
    [
        ({"sead": 1}, "sead", "seed"),
        (
            {"method": {"type": "supervised", "supervized": {}}},
            "method.supervized",
            "method.supervised",
        ),
        (
            {"method": supervised(n_epoch=3)},
            "method.supervised.hyperparameters.n_epoch",
            "method.supervised.hyperparameters.n_epochs",
        ),
        (
            {"hyperparameters": {"batchsize": 3}},
            "hyperparameters.batchsize",
            "method.supervised.hyperparameters.batch_size",
        ),
        (
            {"method": supervised(checkpoint_every={"step": 3})},
            "method.supervised.hyperparameters.checkpoint_every.step",
            "method.supervised.hyperparameters.checkpoint_every.steps",
        ),
    ],
)
def test_an_unknown_field_is_refused_at_any_depth(
    changed: dict[str, Any], param: str, guess: str
) -> None:
    error = refused(**changed)
    assert (error.param, error.code) == (param, "unknown_field")
    assert f"Did you mean {guess!r}?" in error.message


def dpo(**hyperparameters: Any) -> dict[str, Any]:
    """A dpo method with these hyperparameters."""
    return {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}


def test_preferences_have_settings_of_their_own() -> None:
    asked = dpo(beta=0.3, label_smoothing=0.1, n_epochs=2, adapter={"type": "lora"})
    assert parse_create(BODY | {"method": asked}).body() == BODY | {"method": asked}
    empty: tuple[dict[str, Any], ...] = ({}, {"dpo": {}, "supervised": None}, dpo(beta="auto"))
    for bare in ({"type": "dpo"} | one for one in empty):
        assert parse_create(BODY | {"method": bare}).body()["method"] == dpo()


@pytest.mark.parametrize(
    ("method", "param", "code"),
    [
        (dpo(beta=0), "method.dpo.hyperparameters.beta", "invalid_value"),
        (dpo(beta=2.5), "method.dpo.hyperparameters.beta", "invalid_value"),
        (dpo(label_smoothing=0.5), "method.dpo.hyperparameters.label_smoothing", "invalid_value"),
        (dpo(betta=0.1), "method.dpo.hyperparameters.betta", "unknown_field"),
        (
            dpo(adapter={"type": "lora", "dropout": 0.1}),
            "method.dpo.hyperparameters.adapter.dropout",
            "unsupported_field",
        ),
        (supervised(beta=0.1), "method.supervised.hyperparameters.beta", "unknown_field"),
        ({"type": "dpo", "supervised": {}}, "method.supervised", "invalid_value"),
        ({"dpo": {"hyperparameters": {}}}, "method.dpo", "invalid_value"),
    ],
)
def test_what_a_preference_job_cannot_ask_is_named_in_its_own_place(
    method: dict[str, Any], param: str, code: str
) -> None:
    error = refused(method=method)
    assert (error.param, error.code) == (param, code)
    assert "supervised.hyper" not in error.message or "supervised" in param


@pytest.mark.parametrize("kind", ["reinforcement", "magic", 3])
def test_another_method_is_refused_by_its_type(kind: Any) -> None:
    error = refused(method={"type": kind, str(kind): {"hyperparameters": {"beta": 1}}})
    assert (error.param, error.code) == ("method.type", "unsupported_method")


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2147483648}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"suffix": "../x"}, "suffix"),
        ({"suffix": ""}, "suffix"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"integrations": [{"type": "wandb"}]}, "integrations.0.type"),
        ({"integrations": [{"type": "tensorboard"}] * 2}, "integrations"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": 51}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": True}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"batch_size": 257}}, "hyperparameters.batch_size"),
        ({"hyperparameters": {"learning_rate": float("nan")}}, "hyperparameters.learning_rate"),
        ({"hyperparameters": {"max_grad_norm": float("inf")}}, "hyperparameters.max_grad_norm"),
        ({"hyperparameters": {"max_steps": 10**30}}, "hyperparameters.max_steps"),
        ({"hyperparameters": {"keep_last": 1 << 63}}, "hyperparameters.keep_last"),
        ({"host_bytes": 1 << 64}, "host_bytes"),
        ({"commit_every": 10**20}, "commit_every"),
        ({"commit_every": 2, "durability": "step"}, "commit_every"),
        ({"strategy": "zero"}, "strategy"),
        ({"durability": "often"}, "durability"),
        ({"durability": 3}, "durability"),
        ({"durability": {}}, "durability"),
        ({"durability": {"steps": 0}}, "durability.steps"),
        ({"durability": {"hours": 1}}, "durability.hours"),
        ({"limits": {"max_hours": 0}}, "limits.max_hours"),
        ({"export": []}, "export"),
        ({"export": [{"format": "onnx"}]}, "export.0.format"),
        ({"export": [{"format": "hf", "dtype": "q8_0"}]}, "export.0.dtype"),
        ({"export": [{"format": "hf"}, {"format": "adapter"}]}, "export"),
        ({"export": [{"format": "gguf"}, {"format": "gguf", "dtype": "float32"}]}, "export"),
        ({"export": [{}, {"format": "gguf"}, {}]}, "export"),
        ({"method": supervised(adapter={"type": "dora"})}, f"{ADAPTER}.type"),
        ({"method": supervised(adapter={"rank": 8})}, f"{ADAPTER}.type"),
        ({"method": supervised(adapter={"type": "lora", "dropout": 0.1})}, f"{ADAPTER}.dropout"),
        ({"method": supervised(adapter={"type": "lora", "base": "nf4"})}, f"{ADAPTER}.base"),
        ({"method": supervised(adapter={"type": "lora", "r": 8})}, f"{ADAPTER}.r"),
        ({"chat_template": "x"}, "chat_template"),
        ({"hyperparameters": {"clip_mode": "some"}}, "hyperparameters.clip_mode"),
        ({"training_file": None}, "training_file"),
        ({"training_file": "\ud800"}, "training_file"),
        ({"metadata": {"k": "\udfff"}}, "metadata.k"),
        ({"model": ""}, "model"),
        ({"method": 3}, "method"),
    ],
)
def test_a_bad_value_is_refused_by_its_path(values: dict[str, Any], param: str) -> None:
    assert refused(**values).param == param


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(ApiError, match="JSON object"):
        parse_create(body)


def test_a_field_that_cannot_be_spelled_is_refused_all_the_same() -> None:
    error = refused(**{"\ud800": 1})
    assert error.param == "\\ud800" and error.message.encode()


def test_every_hyperparameter_may_be_auto() -> None:
    names = Hyperparameters.model_fields
    assert hyperparameters({"method": supervised(**dict.fromkeys(names, "auto"))}) == {}
    assert all(not field.is_required() for field in names.values())


def test_the_request_is_what_the_document_says() -> None:
    schema = CreateJob.model_json_schema()
    assert schema["required"] == ["model", "training_file"]
    assert schema["additionalProperties"] is False


def test_a_guess_is_made_only_when_it_is_close() -> None:
    assert did_you_mean("seeed", ["seed", "suffix"]) == " Did you mean 'seed'?"
    assert did_you_mean("zzz", ["seed", "suffix"]) == " Known: seed, suffix."


def test_the_envelope_has_its_four_keys() -> None:
    error = ApiError(404, "gone", hint="look elsewhere").envelope()["error"]
    assert error == {
        "message": "gone",
        "type": "not_found_error",
        "param": None,
        "code": None,
        "hint": "look elsewhere",
    }


def test_a_known_field_that_there_is_not_may_be_left_open() -> None:
    given = CreateJob.model_validate(
        {"model": "m", "training_file": "f", "chat_template": None, "dataset": "auto",
         "hyperparameters": {"adapter": None, "neftune": "auto"}}
    )  # fmt: skip
    assert given.hyperparameters and given.hyperparameters.given() == {}


def test_columns_are_of_keys_that_formats_have() -> None:
    body = {"model": "m", "training_file": "f"}
    given = CreateJob.model_validate({**body, "dataset": {"columns": {"prompt": "question"}}})
    assert given.body()["dataset"] == {"columns": {"prompt": "question"}}
    for dataset, param in (
        ({"columns": {"reply": "a"}}, "dataset.columns"),
        ({"columns": {"prompt": "a", "completion": "a"}}, "dataset.columns"),
        ({"format": "alpaca"}, "dataset.format"),
        ({"column": {}}, "dataset.column"),
    ):
        with pytest.raises(ApiError) as caught:
            parse_create({**body, "dataset": dataset})
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("changed", "meant"),
    [
        ({"learning_rate": 1e-5}, "method.supervised.hyperparameters.learning_rate"),
        ({"lora_rank": 8}, "method.supervised.hyperparameters.adapter.rank"),
        ({"epochs": 3}, "method.supervised.hyperparameters.n_epochs"),
        ({"max_hours": 3}, "limits.max_hours"),
        ({"columns": {}}, "dataset.columns"),
        ({"method": supervised(priority=3)}, "priority"),
        ({"method": supervised(adapter={"type": "lora", "lora_r": 3})}, f"{ADAPTER}.rank"),
        ({"method": dpo(lr=1e-5)}, "method.dpo.hyperparameters.learning_rate"),
        (
            {"method": dpo(adapter={"type": "lora", "r": 3})},
            "method.dpo.hyperparameters.adapter.rank",
        ),
    ],
)
def test_a_field_in_the_wrong_place_is_told_its_own(changed: dict[str, Any], meant: str) -> None:
    assert f"Did you mean {meant!r}?" in refused(**changed).message


@pytest.mark.parametrize(
    "changed",
    [
        {"method": supervised(beta=0.1)},
        {"hyperparameters": {"beta": 0.1}},
        {"beta": 0.1},
    ],
)
def test_a_setting_of_another_method_says_what_to_give(changed: dict[str, Any]) -> None:
    said = refused(**changed).message
    assert "is of method dpo: give method.type 'dpo'" in said
    assert "'method.dpo.hyperparameters.beta'" in said


def test_settings_without_the_type_that_they_are_of_are_told_it() -> None:
    said = refused(method={"dpo": {"hyperparameters": {"beta": 0.1}}}).message
    assert "give method.type 'dpo'" in said
    said = refused(method=supervised(adapter={"rank": 8})).message
    assert "Wanted 'lora' or 'qlora'" in said
