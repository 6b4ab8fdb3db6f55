"""What the API answers when it refuses: one exception, one envelope. Pure."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

# The word that clients of the OpenAI API find in `error.type`, by status.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

ENVELOPE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
                "hint": {"type": "string"},
            },
        }
    },
}


class ApiError(Exception):
    """A refusal with its HTTP status and the fields of the error envelope.

    `param` names the field at fault by its dotted path, `code` is a word for programs, `hint` says
    what to do next, and `headers` are of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = printable(message)
        self.type = type or error_type(status)
        self.param = param and printable(param)
        self.code = code
        self.hint = hint
        self.headers = headers

    def envelope(self) -> dict[str, Any]:
        """The answer's body; the four keys of the OpenAI envelope are always there."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if self.hint:
            error["hint"] = self.hint
        return {"error": error}


def not_ready(reasons: Iterable[str]) -> dict[str, Any]:
    """The body of the 503 for a daemon that can take no job now, with the reasons one by one."""
    known = list(reasons)
    body = ApiError(503, f"Not ready: {'; '.join(known)}.", code="not_ready").envelope()
    body["error"]["reasons"] = known
    return body


def printable(text: str) -> str:
    """The text with what UTF-8 cannot say, such as half a surrogate pair, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def error_type(status: int) -> str:
    """The `error.type` of a status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for a name close to a known one, else the known ones, else nothing."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}." if names else ""


def not_found(what: str, name: str, *, param: str | None = None) -> ApiError:
    """The 404 for a file, job, model or page that does not exist."""
    code = f"{what.replace(' ', '_')}_not_found"
    return ApiError(404, f"No such {what}: {name!r}.", param=param, code=code)
