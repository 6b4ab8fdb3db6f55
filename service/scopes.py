"""What a token may do: each scope holds the ones before it, each request wants one. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from .errors import ApiError

Scope = Literal["metrics", "read", "submit", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each may do what the ones before it may

SAFE = frozenset({"GET", "HEAD"})
# The first that fits counts: methods, path, scope. What is not here can be read with `read`, and
# changed with `admin` alone.
RULES: tuple[tuple[frozenset[str], re.Pattern[str], Scope], ...] = (
    (SAFE, re.compile(r"/metrics"), "metrics"),
    (frozenset({"POST"}), re.compile(r"/logout"), "metrics"),
    (frozenset({"POST"}), re.compile(r"/v1/files|/v1/uploads(/.*)?"), "submit"),
    (frozenset({"DELETE"}), re.compile(r"/v1/files/[^/]+"), "submit"),
    (frozenset({"POST"}), re.compile(r"/v1/fine_tuning/(jobs|plans)"), "submit"),
    (
        frozenset({"POST"}),
        re.compile(r"/v1/fine_tuning/jobs/[^/]+/(cancel|pause|resume)"),
        "submit",
    ),
)


def wanted(method: str, path: str) -> Scope:
    """The least scope that a request wants."""
    for methods, pattern, scope in RULES:
        if method in methods and pattern.fullmatch(path):
            return scope
    return "read" if method in SAFE else "admin"


def holds(granted: Scope, scope: Scope) -> bool:
    """Whether who was granted the one may do what the other allows."""
    return SCOPES.index(granted) >= SCOPES.index(scope)


def require(entry: Mapping[str, Any] | None, method: str, path: str) -> None:
    """ApiError (403) unless the token of that entry may do this. None: no token exists yet.

    A token from before there were scopes may do everything.
    """
    granted: Scope = entry.get("scope", "admin") if entry is not None else "admin"
    scope = wanted(method, path)
    if not holds(granted, scope):
        message = f"This token has the scope {granted!r}; {method} {path} wants {scope!r}."
        hint = f"Make another with: headrace token create NAME --scope {scope}"
        raise ApiError(403, message, code="insufficient_scope", hint=hint)
