"""What pydantic finds wrong with a request, as the refusal that names the field."""

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ApiError
from .strict import REFUSED

PLACES = ("body", "query", "path", "header")  # what a place begins with, where a framework tells it
OF_USERS = ("metadata", "columns")  # objects whose keys are words of users
MAX_SHOWN = 80  # characters of what was sent
OURS = ("value_error", "assertion_error")  # no validator of ours refuses by these
# What was wanted, by the error's type; braces hold names of its context.
WANTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "{max_length} or fewer characters",
    "string_too_short": "{min_length} or more characters",
    "string_type": "text",
    "string_unicode": "text",
    "too_long": "{max_length} or fewer of them",
    "too_short": "{min_length} or more of them",
}


def refusal(errors: Sequence[Any]) -> ApiError:
    """The 400 for what pydantic found: its first fault, by the path of the field.

    What is no fault of the request, but of a validator, is raised as it is.
    """
    found = [error for error in errors if not _is_word(error)] or errors
    first = _most_telling(found)
    context: Mapping[str, Any] = first.get("ctx") or {}
    if first["type"] in OURS:
        raise context["error"]
    if first["type"] == "json_invalid":
        cause = context.get("error", "")
        return ApiError(400, f"The body is not valid JSON: {cause}.", code="invalid_json")
    param = _param(first["loc"], context.get("field", ""))
    if not param:
        message = "The body must be a JSON object, sent with content-type: application/json."
        return ApiError(400, message, code="invalid_body")
    if first["type"] == "missing":
        return ApiError(400, f"Missing field {param!r}.", param=param, code="missing_field")
    if "field" in context:  # by a validator of ours
        message = context["text"].replace("{param}", param)
        return ApiError(400, message, param=param, code=context["code"])
    same = [error for error in found if _param(error["loc"], "") == param]
    wanted = " or ".join(dict.fromkeys(map(_wanted, same)))
    message = f"{param} is {_shortened(first.get('input'))}; wanted {wanted}."
    return ApiError(400, message, param=param, code="invalid_value")


def _most_telling(errors: Sequence[Any]) -> Any:
    """The first error; of those that the forms of its field have, the one that goes deepest."""
    param = _param(errors[0]["loc"], "")
    within = [error for error in errors if f"{_param(error['loc'], '')}.".startswith(f"{param}.")]
    return max(within, key=lambda error: len(_param(error["loc"], "").split(".")))


def _wanted(error: Any) -> str:
    context: Mapping[str, Any] = error.get("ctx") or {}
    if error["type"] == REFUSED:
        return str(context["text"])
    if error["type"] in ("too_short", "too_long") and isinstance(error["input"], str):
        return _wanted({**error, "type": f"string_{error['type']}"})
    wanted = WANTED.get(error["type"])
    return wanted.format_map(context) if wanted else error["msg"][:1].lower() + error["msg"][1:]


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _param(place: Sequence[Any], field: str) -> str:
    """The path of a field: the place that pydantic tells, and the field within it."""
    where: list[str] = []
    for part in place[1:] if place and place[0] in PLACES else place:
        if part == "[key]" or (_is_form(part) and where[-1:] not in [[name] for name in OF_USERS]):
            continue
        where.append(str(part))
    return ".".join([*where, field] if field else where)


def _is_form(part: Any) -> bool:
    """Whether that part of a place is no field, but pydantic's word for one of several forms."""
    return str(part).startswith(("function-", "literal[", "list[", "constrained-str", "dict["))


def _is_word(error: Any) -> bool:
    """Whether that is what the words of a field say of its object form."""
    return any(str(part).startswith("literal[") for part in error["loc"])
