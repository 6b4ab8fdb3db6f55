"""The OpenAPI document says of every field of a request what it is, and what is taken there."""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel, ValidationError

from fakes_daemon import FakeDaemon
from headrace.service.app import create_app
from headrace.service.errors import ApiError
from headrace.service.hyperparameter_fields import DpoHyperparameters
from headrace.service.hyperparameters import settle
from headrace.service.refusals import refusal
from headrace.service.run_settings import free_values, state_format
from headrace.service.schemas import CreateJob, ResumeJob, parse_create
from headrace.service.upload_schemas import CompleteUpload, CreateUpload

Json = Mapping[str, Any]
Place = tuple[str, ...]  # names of fields; "0" is the item of a list

JOB: Json = {"model": "m", "training_file": "f"}
UPLOAD: Json = {"bytes": 1, "filename": "a", "mime_type": "b", "purpose": "fine-tune"}
BODIES: list[tuple[type[BaseModel], Json]] = [
    (CreateJob, JOB),
    (ResumeJob, {"limits": {}}),
    (CreateUpload, UPLOAD),
    (CompleteUpload, {"part_ids": ["p"]}),
]
# What stands beside a field so that it may be given at all, by the end of its place.
BESIDE: Mapping[Place, Json] = {
    ("early_stopping",): {"patience": 1},
    ("adapter",): {"type": "qlora"},
    ("checkpoint_every",): {"steps": 1, "minutes": 1},
    ("durability",): {"steps": 1, "minutes": 1},
    ("export", "0"): {"format": "gguf"},
    ("integrations", "0"): {"type": "tensorboard"},
    ("expires_after",): {"anchor": "created_at", "seconds": 3600},
    ("method",): {},
}
ODD: list[Any] = [None, "auto", True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-9, 11.5, 1e400, "", "x",
                  "0", "a" * 65, "a" * 600, "-x", [], [""], ["a"], ["a", 3], ["a"] * 17, {},
                  {"a": "b"}, {"prompt": "x"}, {"a": 1}, {"k" * 65: "v"}, {"steps": 2},
                  {str(i): "v" for i in range(17)}, [{}], [{}, {"format": "gguf"}, {}],
                  {"patience": 0}, {"type": "lora"}, 2**31, 2**63]  # fmt: skip


def schema_of(schema: Json, definitions: Json) -> Json:
    """The schema itself, where it is a reference."""
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Json = definitions[name] if name else schema
    return found


def fields_of(schema: Json, definitions: Json, place: Place = ()) -> Iterator[tuple[Place, Json]]:
    """Every field of a body with its place, at any depth."""
    schema = schema_of(schema, definitions)
    for name, field in schema.get("properties", {}).items():
        yield (*place, name), field
        yield from fields_of(field, definitions, (*place, name))
    for option in schema.get("anyOf", ()):
        yield from fields_of(option, definitions, place)
    if isinstance(schema.get("items"), dict):
        yield from fields_of(schema["items"], definitions, (*place, "0"))


def body_with(base: Json, place: Place, value: Any) -> Any:
    """The body with that value at that place, and beside it what has to be there."""

    def build(at: int, given: Json) -> Any:
        if at == len(place):
            return value
        if place[at] == "0":
            return [build(at + 1, {})]
        around = place[:at]
        beside = next((more for end, more in BESIDE.items() if around[-len(end) :] == end), {})
        inner = given.get(place[at]) or {}
        kind = {"type": place[at]} if around == ("method",) and place[at] != "type" else {}
        deeper = inner if isinstance(inner, dict) else {}
        return {**given, **beside, **kind, place[at]: build(at + 1, deeper)}

    return build(0, base)


def edges(schema: Json, definitions: Json) -> Iterator[Any]:
    """Values on both sides of what a field's schema says."""
    for one in (schema, *schema.get("anyOf", ())):
        told = schema_of(one, definitions)
        yield from told.get("enum", [told["const"]] if "const" in told else ())
        step = 1 if told.get("type") == "integer" else 0.25
        for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if word in told:
                yield from (told[word] - step, told[word], told[word] + step)
        for word in ("minLength", "maxLength"):
            if word in told:
                yield from ("a" * max(0, told[word] + more) for more in (-1, 0, 1))


PLACES = [
    pytest.param(model, base, place, field, id=f"{model.__name__}-{'.'.join(place)}")
    for model, base in BODIES
    for place, field in fields_of(
        model.model_json_schema(), model.model_json_schema().get("$defs", {})
    )
]


@pytest.mark.parametrize(("model", "base", "place", "field"), PLACES)
def test_what_the_schema_says_of_a_field_is_what_is_taken(
    model: type[BaseModel], base: Json, place: Place, field: Json
) -> None:
    schema = model.model_json_schema()
    validator = jsonschema_rs.Draft202012Validator(schema)
    taken = 0
    for value in (*ODD, *edges(field, schema.get("$defs", {}))):
        body = body_with(base, place, value)
        if value in (2**63, 1e400):  # more than JSON is sure to hold
            continue
        says_yes = validator.is_valid(body)
        try:
            model.model_validate(body)
        except (ValidationError, ApiError) as e:
            error = refusal(e.errors()) if isinstance(e, ValidationError) else e
            assert not says_yes, f"the schema takes {value!r:.60}, and: {error.message}"
            assert error.param and error.param.split(".")[0] in (*place, *base), error.message
        else:
            taken += 1
            assert says_yes, f"the schema refuses {value!r:.60}, which is taken"
    assert taken, "nothing that was tried is taken"


def test_every_field_that_may_be_left_open_says_so_and_what_it_then_is() -> None:
    schema = CreateJob.model_json_schema()
    seen = 0
    for place, field in fields_of(schema, schema["$defs"]):
        required = place in (("model",), ("training_file",)) or place[-2:] in (
            ("early_stopping", "patience"), ("adapter", "type"), ("0", "type"),
        )  # fmt: skip
        options = field.get("anyOf", [field])
        is_open = {"const": "auto"} in options and {"type": "null"} in options
        is_open |= field.get("enum") == ["auto", None]
        assert is_open != required, place
        assert ("default" in field) != required, place
        seen += 1
    assert seen > 150


def test_a_default_given_is_the_same_as_nothing_given() -> None:
    fixed = {
        name: field["default"]
        for name, field in DpoHyperparameters.model_json_schema()["properties"].items()
        if field["default"] != "auto"
    }
    assert {"lr_scheduler", "warmup_ratio", "keep_last", "beta"} <= fixed.keys()
    told: dict[str, Any] = {"num_rows": 100, "max_positions": 512}
    settled = settle({}, "dpo", **told)
    assert settle(fixed, "dpo", **told) == settled
    assert {name: settled[name] for name in fixed} == fixed
    adapter = CreateJob.model_json_schema()["$defs"]["Adapter"]["properties"]
    given = {name: field["default"] for name, field in adapter.items()
             if field.get("default", "auto") != "auto"}  # fmt: skip
    bare = settle({"adapter": {"type": "lora"}}, **told)
    assert settle({"adapter": {"type": "lora", **given}}, **told) == bare


def test_a_default_of_the_run_given_is_the_same_as_nothing_given() -> None:
    fixed = {
        name: field["default"]
        for name, field in CreateJob.model_json_schema()["properties"].items()
        if field.get("default", "auto") != "auto"
    }
    assert fixed == {
        "dry_run": False, "priority": 0, "state_format": "exact", "deterministic": True,
        "durability": "step", "keep_commits": 0,
    }  # fmt: skip
    bare, given = parse_create(JOB).body(), parse_create({**JOB, **fixed}).body()
    assert free_values(bare) == free_values(given)
    assert state_format(bare) == state_format(given)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The served description."""
    return create_app(FakeDaemon(tmp_path_factory.mktemp("document"))).openapi()


def described(schema: Json, definitions: Json, place: Place = ()) -> Iterator[Place]:
    """Fields without a description."""
    for where, field in fields_of(schema, definitions, place):
        if len(field.get("description", "")) < 10:
            yield where


def test_no_field_of_any_request_is_without_description(document: Json) -> None:
    definitions = document["components"]["schemas"]
    bare: list[tuple[str, Any]] = []
    fields = 0
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            for parameter in operation.get("parameters", ()):
                fields += 1
                if len(parameter.get("description", "")) < 10:
                    bare.append((f"{verb} {path}", parameter["name"]))
            for content in operation.get("requestBody", {}).get("content", {}).values():
                fields += len(list(fields_of(content["schema"], definitions)))
                bare += [
                    (f"{verb} {path}", one) for one in described(content["schema"], definitions)
                ]
    assert fields > 300
    assert not bare, bare


def test_a_commit_is_not_called_a_checkpoint(document: Json) -> None:
    schemas = document["components"]["schemas"]
    for name, word in (("CommitEvery", "Commit "), ("Every", "Checkpoint ")):
        titles = [field["title"] for field in schemas[name]["properties"].values()]
        assert len(titles) == 2 and all(title.startswith(word) for title in titles)


def test_what_a_path_names_is_told_as_a_parameter(document: Json) -> None:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            in_path = {part.strip("{}") for part in path.split("/") if part.startswith("{")}
            assert named == in_path, f"{verb} {path}"


def test_answers_have_hyperparameters_with_names_and_ranges(document: Json) -> None:
    definitions = document["components"]["schemas"]
    for name in ("Job", "Plan"):
        told = schema_of(definitions[name]["properties"]["hyperparameters"], definitions)
        assert "n_epochs" in told.get("properties", {}), name
