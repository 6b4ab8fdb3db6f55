"""Sessions of the page: a browser shows its token once and gets a cookie that stands for it.

Only hashes are kept. A session ends when its time is over, when it is closed, and with the token
that opened it. What changes anything is taken from a cookie only with a header that other sites'
pages cannot send, and from our own origin.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .auth import Tokens
from .errors import ApiError
from .json_file import read_or_forget
from .logs import get_logger
from .whole_file import write_private

log = get_logger("headrace.api")

COOKIE = "headrace_session"
PAGE_HEADER = "x-headrace-page"
LIFE_SECONDS = 7 * 24 * 3600
MAX_SESSIONS = 200  # the one that ends first makes room
SAFE_METHODS = frozenset({"GET", "HEAD"})


class Sessions:
    """The sessions there are, by hash: {sha256: {token, expires_at}}, in a file of mode 0600."""

    def __init__(self, path: Path, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._tokens = tokens
        self._clock = clock
        self._open: dict[str, dict[str, Any]] | None = None

    def open(self, token: str) -> str | None:
        """A new session for a good token: the secret for the cookie. None: the token is unknown.

        On a drive without room, which people must be able to look at, it lasts as long as the
        process.
        """
        entry = self._tokens.find(token)
        if entry is None:
            return None
        secret = secrets.token_urlsafe(32)
        session = {"token": entry["sha256"], "expires_at": int(self._clock()) + LIFE_SECONDS}
        by_end = sorted(self._alive().items(), key=lambda item: -int(item[1]["expires_at"]))
        try:
            self._save(dict([(_digest(secret), session), *by_end[: MAX_SESSIONS - 1]]))
        except OSError as error:
            log.warning("a session is not written down", reason=str(error))
        return secret

    def find(self, secret: str) -> dict[str, Any] | None:
        """The entry of the token that a session stands for, while both are good."""
        session = self._alive().get(_digest(secret))
        if session is None:
            return None
        by_hash = {entry["sha256"]: entry for entry in self._tokens.entries()}
        return by_hash.get(session["token"])

    def close(self, secret: str) -> None:
        """End a session; nothing when there is none. OSError: it may come back at a restart."""
        kept = dict(self._alive())
        if kept.pop(_digest(secret), None):
            self._save(kept)

    def _alive(self) -> dict[str, dict[str, Any]]:
        if self._open is None:
            self._open = _read(self._path)
        now = self._clock()
        return {name: one for name, one in self._open.items() if one["expires_at"] > now}

    def _save(self, sessions: dict[str, dict[str, Any]]) -> None:
        self._open = sessions
        write_private(self._path, json.dumps(sessions))


def let_in(sessions: Sessions, method: str, headers: Mapping[str, str]) -> dict[str, Any] | None:
    """The token's entry for a request with a good session, None for one without.

    ApiError (403) for a request that would change something and did not come from our own page.
    """
    secret = read_cookie(headers)
    entry = sessions.find(secret) if secret else None
    if entry is not None and method not in SAFE_METHODS:
        if PAGE_HEADER not in headers:
            message = f"A session wants the header {PAGE_HEADER} on requests that change things."
            raise ApiError(403, message, code="cross_origin")
        check_origin(headers)
    return entry


def check_origin(headers: Mapping[str, str]) -> None:
    """ApiError (403) unless the browser says that the request comes from a page of this server."""
    origin = headers.get("origin", "")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin" or not is_own(origin, headers):
        raise ApiError(403, f"Requests from pages of {origin!r} are refused.", code="cross_origin")


def is_own(origin: str, headers: Mapping[str, str]) -> bool:
    """Whether an Origin header names the host that the request went to."""
    try:
        return bool(origin) and urlsplit(origin).netloc == headers.get("host", "")
    except ValueError:
        return False


def read_cookie(headers: Mapping[str, str]) -> str:
    """The secret in the session cookie; nothing when there is none or it is malformed."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """What an earlier process left. An unreadable file opens nothing: people log in again."""
    return {name: one for name, one in read_or_forget(path).items() if _is_session(one)}


def _is_session(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("token"), str)
        and isinstance(one.get("expires_at"), int)
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
