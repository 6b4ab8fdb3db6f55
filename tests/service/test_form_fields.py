from headrace.service.form_fields import (
    DPO,
    ELSEWHERE,
    common_fields,
    other_fields,
    run_fields,
)
from headrace.service.hyperparameter_fields import DpoHyperparameters, Hyperparameters
from headrace.service.method import HYPERPARAMETERS
from headrace.service.schemas import CreateJob


def test_every_setting_of_the_api_is_on_the_form_once() -> None:
    fields = [*common_fields(), *other_fields()]
    first, *fields = fields
    assert first.path == "method.type" and list(first.choices) == ["supervised", "dpo"]
    places = {HYPERPARAMETERS: Hyperparameters, DPO: DpoHyperparameters}
    found = {place: {field.path.removeprefix(f"{place}.").split(".")[0] for field in fields
                     if field.path.startswith(f"{place}.")} for place in places}  # fmt: skip
    assert found[HYPERPARAMETERS] == set(Hyperparameters.model_fields)
    assert found[DPO] == {"beta", "label_smoothing"}
    assert found[HYPERPARAMETERS] | found[DPO] == set(DpoHyperparameters.model_fields)
    paths = [field.path for field in (*fields, *run_fields())]
    assert len(paths) == len(set(paths))
    top = {field.path.split(".")[0] for field in run_fields()}
    assert top == set(CreateJob.model_fields) - ELSEWHERE


def test_ids_are_of_one_field_each() -> None:
    ids = [field.id for field in (*common_fields(), *other_fields(), *run_fields())]
    assert len(ids) == len(set(ids))


def test_fields_know_what_they_take() -> None:
    kinds = {field.path.rpartition(".")[2]: field for field in (*other_fields(), *run_fields())}
    assert kinds["clip_mode"].kind == "choice" and "exact" in kinds["clip_mode"].choices
    assert kinds["deterministic"].kind == "boolean"
    assert kinds["max_bytes_written"].kind == kinds["host_bytes"].kind == "bytes"
    assert kinds["weight_decay"].kind == "number"
    assert kinds["metadata"].kind == "json"
    assert kinds["durability"].kind == kinds["target_modules"].kind == "json"
    assert {field.kind for field in common_fields()} <= {"integer", "number", "choice"}
