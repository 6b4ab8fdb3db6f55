"""Who may call: bearer tokens, of which only hashes are kept.

Until a token exists the API is open, and open means to this machine only: requests must come from a
loopback address and be addressed to a loopback name, since a caller from afar may name any host,
and pages of other sites are refused, so that no web page can reach it through the user's browser.
"""

import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import ApiError
from .json_file import read_or_forget
from .scopes import Scope
from .tokens_file import TokensDamaged, TokensFile, is_moment
from .whole_file import write_private

PREFIX = "hr_"
UNKNOWN_TOKEN = "invalid_api_key"  # the word of the OpenAI API
MISSING_TOKEN = "missing_token"
SHOWN_CHARS = 8  # of a token, in lists


class Tokens:
    """The access tokens of a daemon, by their file (`TokensFile`).

    When each was last used is kept beside it, to the minute, by the process that serves.
    """

    def __init__(self, path: Path) -> None:
        self._file = TokensFile(path)
        self._uses_path = path.with_name(f"{path.stem}-used.json")
        self._uses: dict[str, int] = {}
        self._uses_told: dict[str, int] = {}

    def entries(self) -> list[dict[str, Any]]:
        """The tokens there are; read again when the file has changed. TokensDamaged: unreadable."""
        return self._file.entries()

    def damage(self) -> str | None:
        """What is wrong with the tokens file; None: nothing."""
        try:
            self.entries()
        except TokensDamaged as e:
            return e.message.rstrip(".")
        return None

    def create(self, name: str, *, scope: Scope = "admin") -> str:
        """Make a token and keep its hash; the token itself is never to be had again."""
        token, entry = _new_token(name, scope)
        with self._file.alone():
            self._file.save([*self.entries(), entry])
        return token

    def mend(self, name: str, *, scope: Scope = "admin") -> tuple[str, int]:
        """Replace a damaged file by what can still be read of it and a new token, in one move.

        The new token, and how many were kept. The door is never open meanwhile, and the damaged
        file stays beside the new one. ValueError where nothing is damaged; OSError.
        """
        token, entry = _new_token(name, scope)
        with self._file.alone():
            kept = self._file.salvage()
            self._file.save([*kept, entry])
        return token, len(kept)

    def revoke(self, shown: str) -> bool:
        """Forget the tokens that are listed as `shown`; whether there were any."""
        with self._file.alone():
            entries = self.entries()
            kept = [entry for entry in entries if entry["shown"] != shown]
            self._file.save(kept)
        return len(kept) < len(entries)

    def find(self, token: str) -> dict[str, Any] | None:
        """The entry of that token, if it is one, found in a time that does not depend on it."""
        digest = _digest(token)
        entries = self.entries()
        same = [hmac.compare_digest(entry["sha256"], digest) for entry in entries]
        return entries[same.index(True)] if any(same) else None

    def knows(self, entry: Mapping[str, Any]) -> bool:
        """Whether the token of that entry is still good."""
        try:
            return any(one["sha256"] == entry["sha256"] for one in self.entries())
        except TokensDamaged:
            return False

    def note_use(self, entry: Mapping[str, Any]) -> None:
        """Remember that the token was used now; `keep_uses` makes it last."""
        self._uses[entry["sha256"]] = int(time.time())

    def keep_uses(self) -> None:
        """Write down when tokens were last used, if that has changed. Blocks for a moment."""
        uses = dict(self._uses)
        if uses != self._uses_told:
            write_private(self._uses_path, json.dumps(self.last_used() | uses))
            self._uses_told = uses

    def last_used(self) -> dict[str, int]:
        """When each token was last used, by its hash; seconds since 1970.

        What an unreadable file said is forgotten.
        """
        found = read_or_forget(self._uses_path)
        return {name: at for name, at in found.items() if is_moment(at)}


def check(tokens: Tokens, headers: Mapping[str, str], address: str = "") -> dict[str, Any] | None:
    """Let a request through: its token's entry, None while there is no token.

    `address` is where it comes from; nothing, or no IP address, where the server cannot tell.
    ApiError: 401 without a good token, 403 from afar.
    """
    if not tokens.entries():
        _check_is_local(headers, address)
        return None
    given = headers.get("authorization", "").removeprefix("Bearer ").strip()
    given = given or headers.get("api-key", "")
    if not given:
        message = "No token was given. Send it as `Authorization: Bearer …`."
        raise ApiError(401, message, code=MISSING_TOKEN)
    entry = tokens.find(given)
    if entry is None:
        raise ApiError(401, "The token is not known here.", code=UNKNOWN_TOKEN)
    return entry


def first_token(tokens: Tokens, host: str, token_path: Path) -> bool:
    """Make a token when `host` can be reached from other machines and there is none.

    It is written to `token_path` (mode 0600) for the owner to read; whether one was made.
    """
    if is_loopback(host) or tokens.entries():
        return False
    write_private(token_path, tokens.create("first") + "\n")
    return True


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_from_afar(address: str) -> bool:
    """Whether an address is one of another machine; False for what is no IP address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return not (mapped or found).is_loopback


def _check_is_local(headers: Mapping[str, str], address: str) -> None:
    if is_from_afar(address):
        message = f"Without a token the API answers to this machine only, not to {address}."
        hint = "Make one on the daemon's machine with: headrace token create NAME"
        raise ApiError(403, message, code="not_local", hint=hint)
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_loopback(_name_of(host)):
        message = f"Without a token the API answers to localhost only, not to {host!r}."
        raise ApiError(403, message, code="not_local")
    if not is_to_this_machine(headers):
        raise ApiError(403, f"Requests from pages of {origin!r} are refused.", code="cross_origin")


def is_to_this_machine(headers: Mapping[str, str]) -> bool:
    """Whether a request names this machine as its host, and no page of another site sent it."""
    host, origin = headers.get("host", ""), headers.get("origin")
    own = origin is None or origin.removeprefix("http://") == host
    return is_loopback(_name_of(host)) and own


def _name_of(host: str) -> str:
    """The name in a Host header, without the port; nothing when it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _new_token(name: str, scope: Scope) -> tuple[str, dict[str, Any]]:
    """A token and its entry."""
    token = PREFIX + secrets.token_urlsafe(32)
    entry = {
        "name": name,
        "shown": token[: len(PREFIX) + SHOWN_CHARS],
        "sha256": _digest(token),
        "scope": scope,
        "created_at": int(time.time()),
    }
    return token, entry


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
