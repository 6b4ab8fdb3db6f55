"""`--set NAME=VALUE`: any field of a create body, by its path or by its name in the method."""

import json
from typing import Any

from ..job_fields import JobField, JobFields
from ..method import LEGACY, METHODS, place_of_settings
from .options import parse_size
from .output import CliError

METHOD_SHAPE = '{"type": "dpo"}'


def split_setting(text: str) -> tuple[str, str]:
    """'learning_rate=1e-4' -> ('learning_rate', '1e-4'); CliError without a name and a '='."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise CliError(f"--set wants NAME=VALUE, got {text!r}")
    return name.strip(), value


def parse_setting(text: str) -> tuple[str, Any]:
    """'learning_rate=1e-4' -> ('learning_rate', 0.0001); what is not JSON is taken as text."""
    name, value = split_setting(text)
    return name, _json_or_text(value)


def apply_settings(body: dict[str, Any], settings: list[str], *, method: str | None) -> None:
    """Put NAME=VALUE settings into a create body, in place, the last of a name over the others.

    NAME is a field's path (`priority`, `limits.max_hours`, `method.dpo.hyperparameters.beta`), or
    its path within the hyperparameters of the job's method (`learning_rate`, `adapter.rank`). The
    method is `method`, the body's, or the one that a path names; else supervised. CliError for what
    is no field, with the path of the one that was meant, and for a value of another kind.
    """
    from ..schemas import job_fields

    if not settings and method is None:
        return
    fields = job_fields()
    given = [split_setting(text) for text in settings]
    given = [("method.type" if name == "method" else name, value) for name, value in given]
    kind = method_of_body(body, given, method)
    if kind == "supervised" and body.get("method") is None and body.get(LEGACY) is not None:
        body["method"] = {"type": kind, kind: {"hyperparameters": body.pop(LEGACY)}}
    for name, text in given:
        field = fields.find(name, kind)
        if field is None:
            raise unknown_setting(fields, name, kind)
        parent, _, last = field.path.rpartition(".")
        (_object_at(body, parent) if parent else body)[last] = value_of(field, text)
    if method or body.get("method") is not None:
        _object_at(body, "method").setdefault("type", kind)


def method_of_body(body: dict[str, Any], given: list[tuple[str, str]], method: str | None) -> str:
    """The kind of method that body, option and settings agree on. CliError where they do not."""
    own = body.get("method")
    if own is not None and not isinstance(own, dict):
        raise CliError(f"the job's method is {own!r}; wanted an object, such as {METHOD_SHAPE}")
    asked = {
        "--method": method,
        "--set method.type": dict(given).get("method.type"),
        "the job file": (own or {}).get("type"),
    }
    asked |= {
        f"--set {name}": name.split(".")[1]
        for name, _ in given
        if name.startswith(tuple(f"method.{kind}." for kind in METHODS))
    }
    said = {where: kind for where, kind in asked.items() if kind is not None}
    if len(set(map(str, said.values()))) > 1:
        words = ", ".join(f"{where} says {kind}" for where, kind in said.items())
        raise CliError(f"a job has one method; {words}")
    return str(next(iter(said.values()), "supervised"))


def unknown_setting(fields: JobFields, name: str, kind: str) -> CliError:
    """What to say of a name that no field of a job with this method has."""
    if other := fields.of_other_method(name, kind):
        return CliError(
            f"{name} is of method {other}, and this job's is {kind}; add --method {other}, or "
            f"leave {name} out"
        )
    if guess := fields.guess(name, kind):
        short = guess.removeprefix(f"{place_of_settings(kind)}.")
        also = "" if short == guess else f", or {short} for short"
        return CliError(f"--set {name}: a job has no such field; did you mean {guess}{also}?")
    names = ", ".join(fields.names(kind))
    return CliError(f"--set {name}: a job has no such field; it has {names}")


def value_of(field: JobField, text: str) -> Any:
    """The value that a text stands for in a field; CliError where the field takes another kind."""
    value = _json_or_text(text)
    if value is None or value == "auto":
        return value
    if field.types == {"string"}:
        return value if isinstance(value, str) else text
    if field.counts_bytes and isinstance(value, str):
        return parse_size(text)
    if field.types == {"boolean"} and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind, python, example in (("array", list, '["…"]'), ("object", dict, '{"…": …}')):
        if field.types == {kind} and not isinstance(value, python):
            raise CliError(
                f"--set {field.path} takes JSON, such as '{example}', and got {text!r}; "
                "put it in quotes for the shell"
            )
    return value


def _object_at(body: dict[str, Any], path: str) -> dict[str, Any]:
    """The object at a path, made where there is none. CliError where something else is."""
    found = body
    for name in path.split("."):
        inner = found.get(name)
        if inner is None:
            inner = found[name] = {}
        if not isinstance(inner, dict):
            raise CliError(f"--set {path}.…: {name} is {inner!r} already; give one of them")
        found = inner
    return found


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError:
        return text


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
