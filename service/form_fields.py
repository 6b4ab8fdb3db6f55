"""The fields of the form for a job, drawn from the schema of create requests. Pure.

So a setting that the API takes is on the form, with the title and the first sentence of its
description there. The fields are the same for every form, so they are drawn once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from .job_fields import counts_bytes
from .method import HYPERPARAMETERS, place_of_settings
from .schemas import create_schema
from .strict import forms_of

Kind = Literal["text", "integer", "number", "bytes", "boolean", "choice", "json"]

# Placed by hand in the form, deprecated, or for programs.
ELSEWHERE = frozenset(
    {"model", "training_file", "validation_file", "suffix", "method", "hyperparameters", "dry_run"}
)
DPO = place_of_settings("dpo")
COMMON = (
    "n_epochs",
    "batch_size",
    "learning_rate",
    "max_steps",
    "max_seq_len",
    "eval_every",
    "checkpoint_every.steps",
    "adapter.type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input. `path` is where its value goes in the body; `choices` are for a `choice`."""

    path: str
    label: str
    help: str
    kind: Kind
    choices: Sequence[str] = ()

    @property
    def id(self) -> str:
        """The id of the input."""
        own = self.path.removeprefix(f"{HYPERPARAMETERS}.").removeprefix(f"{DPO}.")
        return "f-" + own.replace(".", "-")


@cache
def common_fields() -> Sequence[Field]:
    """The method, and the hyperparameters that most people look for first."""
    schema = create_schema()
    method = _fields(schema, schema["$defs"]["Method"], "type", prefix="method.")
    found = {name: field for name, field in _hyperparameters()}
    return (*(field for _, field in method), *(found[name] for name in COMMON))


@cache
def other_fields() -> Sequence[Field]:
    """The other hyperparameters."""
    return tuple(field for name, field in _hyperparameters() if name not in COMMON)


@cache
def run_fields() -> Sequence[Field]:
    """How the job runs: what is not about learning."""
    schema = create_schema()
    names = [name for name in schema["properties"] if name not in ELSEWHERE]
    return tuple(field for name in names for _, field in _fields(schema, schema, name, prefix=""))


def _hyperparameters() -> Iterator[tuple[str, Field]]:
    schema = create_schema()
    inner = schema["$defs"]["Hyperparameters"]
    for name in inner["properties"]:
        yield from _fields(schema, inner, name, prefix=f"{HYPERPARAMETERS}.")
    preferences = schema["$defs"]["DpoHyperparameters"]
    for name in (one for one in preferences["properties"] if one not in inner["properties"]):
        yield from _fields(schema, preferences, name, prefix=f"{DPO}.")


def _fields(
    schema: Mapping[str, Any], owner: Mapping[str, Any], name: str, *, prefix: str, within: str = ""
) -> Iterator[tuple[str, Field]]:
    """The field of a property, or those of the properties of an object."""
    own, told = within + name, owner["properties"][name]
    forms = forms_of(told, schema["$defs"])
    if not forms:
        return
    if len(forms) == 1 and forms[0].get("properties"):
        for inner in forms[0]["properties"]:
            yield from _fields(schema, forms[0], inner, prefix=prefix, within=f"{own}.")
        return
    kind, choices = _kind(own, forms)
    help = re.split(r"\.(?:\s|$)", told["description"], maxsplit=1)[0]
    if kind == "bytes":
        help += "; such as 20GB"
    label = told["title"]
    yield own, Field(path=prefix + own, label=label, help=help, kind=kind, choices=choices)


def _kind(name: str, forms: Sequence[Mapping[str, Any]]) -> tuple[Kind, Sequence[str]]:
    choices = [choice for one in forms for choice in one.get("enum", [one.get("const")])]
    if choices and all(isinstance(choice, str) for choice in choices):
        return "choice", [choice for choice in choices if choice != "auto"]  # it is there already
    types = {one.get("type") for one in forms}
    if types == {"integer"} and counts_bytes(name):
        return "bytes", ()
    if len(types) != 1:
        return "json", ()  # also takes a plain word
    found = types.pop()
    if found in ("integer", "number", "boolean"):
        return found, ()
    return ("text" if found == "string" else "json"), ()
