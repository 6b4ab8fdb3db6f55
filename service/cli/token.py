"""The access tokens of a daemon on this machine, by its tokens file; a running one sees changes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..scopes import Scope
from .options import Json
from .output import CliError, Exit, console, note, print_json, print_table
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from ..auth import Tokens

ScopeOption = Annotated[
    Scope, typer.Option("--scope", help="metrics; read; submit: run jobs too; admin: everything.")
]
AFTERWARDS = "Not shown again. Every caller needs a token now: in HEADRACE_TOKEN, or as api_key."


def create(
    name: Annotated[str, typer.Argument(help="Who or what will use it.")],
    scope: ScopeOption = "admin",
    config: Config = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    From the first token on, a token is wanted of every caller.
    """
    tokens = _tokens(config, data_dir)
    with _readable():
        token = tokens.create(name, scope=scope)
    if as_json:
        print_json({"name": name, "scope": scope, "token": token})
    else:
        console().print(token, markup=False)
        typer.echo(AFTERWARDS, err=True)


def list_tokens(config: Config = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the tokens by their ids, their first characters; the tokens themselves are not kept."""
    tokens = _tokens(config, data_dir)
    used = tokens.last_used()
    with _readable():
        entries = tokens.entries()
    told = [
        {
            "name": entry["name"],
            "shown": entry["shown"],
            "scope": entry.get("scope", "admin"),
            "created_at": entry["created_at"],
            "last_used": used.get(entry["sha256"]),
        }
        for entry in entries
    ]
    if as_json:
        print_json(told)
        return
    columns = ["id", "name", "scope", "made", "last used"]
    rows = [
        [one["shown"], one["name"], one["scope"], _day(one["created_at"]), _day(one["last_used"])]
        for one in told
    ]
    print_table(columns, rows, empty="no tokens: open to this machine alone")


def revoke(
    token: Annotated[
        str, typer.Argument(help="Its id, as `headrace token list` shows it, or its name.")
    ],
    config: Config = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Forget a token: who holds it is refused from now on.

    A name that several tokens have is refused, with their ids.
    """
    tokens = _tokens(config, data_dir)
    with _readable():
        entry = _one(tokens.entries(), token)
        tokens.revoke(entry["shown"])
        left = len(tokens.entries())
    if as_json:
        print_json({"revoked": entry["shown"], "name": entry["name"], "left": left})
    else:
        told = f"{entry['shown']}… ({entry['name']}) is no token any more; {left} left"
        console().print(told, markup=False)
    if not left:
        note("Without a token the API is open to every program on this machine, and to no other.")


def mend(
    name: Annotated[str, typer.Argument(help="Who or what will use the new token.")],
    scope: ScopeOption = "admin",
    config: Config = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Replace a damaged tokens file: keep the tokens that can still be read, and make a new one.

    The damaged file stays beside it, its name ending in `.damaged`. Meanwhile nobody is let in.
    """
    tokens = _tokens(config, data_dir)
    try:
        token, num_kept = tokens.mend(name, scope=scope)
    except ValueError as error:
        raise CliError(str(error), Exit.REFUSED) from error
    if as_json:
        print_json({"name": name, "scope": scope, "token": token, "kept": num_kept})
    else:
        console().print(token, markup=False)
        typer.echo(f"Tokens kept: {num_kept}. {AFTERWARDS}", err=True)


def _one(entries: Sequence[dict[str, Any]], asked: str) -> dict[str, Any]:
    """The token of that id, else the only one of that name. CliError, with the ids."""
    of_id = [entry for entry in entries if entry["shown"] == asked]
    found = of_id or [entry for entry in entries if entry["name"] == asked]
    if len(found) > 1:
        ids = ", ".join(f"{one['shown']} (made {_day(one['created_at'])})" for one in found)
        raise CliError(f"{len(found)} tokens are named {asked!r}; give an id: {ids}", Exit.REFUSED)
    if not found:
        listed = ", ".join(f"{one['shown']} ({one['name']})" for one in entries) or "none"
        raise CliError(f"no token has the id or the name {asked!r}; there are: {listed}",
                       Exit.REFUSED)  # fmt: skip
    return found[0]


def _tokens(config: Path | None, data_dir: Path | None) -> "Tokens":
    from ..auth import Tokens

    return Tokens(load_settings(config, data_dir=data_dir).tokens_path)


@contextmanager
def _readable() -> Iterator[None]:
    """Turn what is wrong with the tokens file into a CliError that says how to mend it."""
    from ..tokens_file import TokensDamaged

    try:
        yield
    except TokensDamaged as error:
        raise CliError(f"{error.message} {error.hint}", Exit.REFUSED) from error


def _day(seconds: int | None) -> str:
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
