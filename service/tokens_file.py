"""The file of access tokens: read again when it changes, judged whole, never taken on trust."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.storage import whole_file

from .errors import ApiError
from .scopes import SCOPES
from .whole_file import write_private

Entry = dict[str, Any]
_SHA256 = re.compile("[0-9a-f]{64}")
LAST_MOMENT = 100_000_000_000  # seconds since 1970, in the year 5138
HOW_TO_MEND = "On the daemon's machine, `headrace token mend NAME` keeps what can still be read."


class TokensDamaged(ApiError):
    """The tokens file cannot be read, or is not what it should be: a 503 to every caller."""

    def __init__(self, path: Path, fault: str) -> None:
        message = f"The tokens file {path} {fault}. Nobody is let in until it is mended."
        super().__init__(503, message, code="tokens_damaged", hint=HOW_TO_MEND)


class TokensFile:
    """A JSON list of {name, shown, sha256, scope, created_at}, mode 0600.

    Without the file there are no tokens; with one that is damaged nobody can tell, so that every
    reading raises TokensDamaged until it is mended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._entries: list[Entry] = []

    def entries(self) -> list[Entry]:
        """The entries there are; read again when the file has changed. TokensDamaged."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp != self._stamp:
                self._entries = _parsed(self._path, self._path.read_bytes())
                self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._entries = None, []
        except OSError as error:
            raise TokensDamaged(self._path, f"cannot be read: {error.strerror}") from error
        return self._entries

    def save(self, entries: list[Entry]) -> None:
        """Replace the file; within `alone`."""
        write_private(self._path, json.dumps(entries, indent=1))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other writers out, so that none undoes what another wrote. Waits for them."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock_path = self._path.with_name(f"{self._path.name}.lock")
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def salvage(self) -> list[Entry]:
        """The whole entries in a damaged file, of which a copy is left beside it.

        ValueError: nothing is damaged. OSError: it cannot be read at all.
        """
        data = self._path.read_bytes()
        try:
            _parsed(self._path, data)
        except TokensDamaged:
            damaged_path = self._path.with_name(f"{self._path.name}.damaged")
            with whole_file(damaged_path, mode=0o600) as file:
                file.write(data)
            return list(_whole_entries(data.decode("utf-8", "replace")))
        raise ValueError(f"the tokens file {self._path} is not damaged; there is nothing to mend")


def is_moment(value: Any) -> bool:
    """Whether that is a time in seconds since 1970, of a year that there can be a date of."""
    return type(value) is int and 0 <= value < LAST_MOMENT


def _parsed(path: Path, data: bytes) -> list[Entry]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokensDamaged(path, f"is not JSON: {error}") from error
    if not isinstance(found, list):
        raise TokensDamaged(path, "holds something else than a list of tokens")
    for i, entry in enumerate(found, 1):
        if fault := _fault_of(entry):
            raise TokensDamaged(path, f"has a token, number {i}, that {fault}")
    return found


def _fault_of(entry: Any) -> str | None:
    """What is wrong with an entry; None: nothing."""
    if not isinstance(entry, dict):
        return "is no object"
    for name in ("name", "shown"):
        if not isinstance(entry.get(name), str):
            return f"has no {name!r}"
    digest = entry.get("sha256")
    if not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
        return "has no 'sha256' of 64 hexadecimal digits"
    if not is_moment(entry.get("created_at")):
        return "has no 'created_at', in seconds since 1970"
    scope = entry.get("scope", "admin")  # tokens from before there were scopes have none
    return None if scope in SCOPES else f"has the scope {scope!r}; known: {', '.join(SCOPES)}"


def _whole_entries(text: str) -> Iterator[Entry]:
    """Each object in the text that is a good entry, whatever stands around it."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            entry, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if _fault_of(entry) is None:
                yield entry
        at = text.find("{", end)
