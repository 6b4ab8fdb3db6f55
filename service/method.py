"""The training method of a request: its kind, and where its settings are. Pure."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast, get_args

from headrace.engine import Objective

from .errors import ApiError

METHODS: tuple[Objective, ...] = get_args(Objective)
LEGACY = "hyperparameters"  # the deprecated place of those of the supervised method


def place_of_settings(kind: str) -> str:
    """The path of the hyperparameters of a method."""
    return f"method.{kind}.hyperparameters"


HYPERPARAMETERS = place_of_settings("supervised")  # where those stand that methods share


def kind_of(body: Mapping[str, Any]) -> Objective:
    """The method of a create body, or of the request in a job's record."""
    return cast(Objective, body.get("method", {}).get("type", "supervised"))


def settings_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The hyperparameters of a create body (`CreateJob.body()`)."""
    found: Mapping[str, Any] = body["method"][kind_of(body)]["hyperparameters"]
    return found


def method_of(kind: Objective, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """The method as a job echoes it."""
    return {"type": kind, kind: {"hyperparameters": dict(hyperparameters)}}


@contextmanager
def speaking_of(there: str) -> Iterator[None]:
    """Let refusals of a setting that methods share name it where the request has it: `there`, the
    path of its hyperparameters."""
    try:
        yield
    except ApiError as error:
        raise ApiError(
            error.status,
            error.message.replace(HYPERPARAMETERS, there),
            type=error.type,
            param=error.param and error.param.replace(HYPERPARAMETERS, there),
            code=error.code,
            hint=error.hint,
        ) from error
