"""Which models there are, by name: folders under the models directories, and what jobs made.

A name is never a path. What a name leads to must lie in a models directory itself, so that neither
`..` nor a symbolic link leads out of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from .errors import ApiError, did_you_mean, printable
from .jobs import ModelRecord
from .journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that a job can start from. `created` is whole seconds since 1970."""

    name: str
    path: Path
    created: int
    is_fine_tuned: bool


def base_models(roots: Sequence[Path], *, contains: str = "") -> Iterator[NamedModel]:
    """The folders of the models directories that hold a model, by name; the first root wins.

    Those alone whose name contains the text, the nearest to it first (`distance`); the others are
    not looked into. What cannot be looked at, such as the `lost+found` of a drive, holds none.
    """
    seen: set[str] = set()
    wanted = contains.casefold()
    found = [(root, path) for root in roots for path in _entries(root)
             if wanted in path.name.casefold()]  # fmt: skip
    for root, path in sorted(found, key=lambda one: distance(one[1].name, contains)):
        if path.name not in seen and (model := _model_at(root, path)):
            seen.add(path.name)
            yield model


def made_models(
    journal: Journal, *, contains: str | None = None, limit: int | None = None
) -> list[NamedModel]:
    """Models made by jobs, newest first; see `Catalog.models`."""
    return [_made(model) for model in journal.models(contains=contains, limit=limit)]


def known_models(roots: Sequence[Path], journal: Journal) -> list[NamedModel]:
    """Every model, those made by jobs first, newest first. Reads the disk: call in a thread."""
    return [*made_models(journal), *base_models(roots)]


def search_models(
    roots: Sequence[Path], journal: Journal, *, contains: str, limit: int
) -> list[NamedModel]:
    """At most `limit` models whose name contains a text, the nearest to it first (`distance`).

    Else in the order of `known_models`. Reads the disk: call in a thread.
    """
    made = made_models(journal, contains=contains, limit=limit)
    found = [*made, *islice(base_models(roots, contains=contains), limit)]
    return sorted(found, key=lambda one: distance(one.name, contains))[:limit]


def distance(name: str, text: str) -> int:
    """Of a name that contains the text, small and capital letters alike: 0 where it is the text,
    1 where it begins with it, 2 elsewhere."""
    folded, wanted = name.casefold(), text.casefold()
    return 0 if folded == wanted else 1 if folded.startswith(wanted) else 2


def find_model(name: str, roots: Sequence[Path], journal: Journal) -> NamedModel | None:
    """The model of that name: a folder, a finished job's, or a checkpoint by name or id."""
    if made := journal.model(name):
        return _made(made)
    for model in base_models(roots, contains=name):
        if model.name == name:
            return model
    checkpoint = journal.checkpoint(name)
    if checkpoint is None:
        return None
    return NamedModel(
        name=checkpoint.name,
        path=Path(checkpoint.path),
        created=checkpoint.created_at,
        is_fine_tuned=True,
    )


def unknown_model(name: str, roots: Sequence[Path], journal: Journal) -> ApiError:
    """The 400 for a job that asks for a model that is not there; names those that are near.

    Where something of that name lies in a models directory, it says why that is no model.
    """
    for root in roots:
        for path in _entries(root):
            if path.name == name and (hindrance := _hindrance(root, path)):
                message = f"Model {name!r}: {path} {hindrance}."
                return ApiError(400, message, param="model", code="model_not_found")
    known = [model.name for model in known_models(roots, journal)]
    where = ", ".join(map(str, roots)) or "no models directory, since none is set"
    message = f"Model {name!r} is not in {where}.{did_you_mean(name, known)}"
    return ApiError(400, message, param="model", code="model_not_found")


def _made(model: ModelRecord) -> NamedModel:
    return NamedModel(
        name=model.name, path=Path(model.path), created=model.created_at, is_fine_tuned=True
    )


def _entries(root: Path) -> list[Path]:
    """What lies in a directory; nothing where it is not there, or cannot be read."""
    try:
        return sorted(root.iterdir())
    except OSError:
        return []


def _model_at(root: Path, path: Path) -> NamedModel | None:
    """The model in that folder. A name that is no text, as bytes on a disk may be, names none."""
    if printable(path.name) != path.name or _hindrance(root, path):
        return None
    try:
        created = int(path.stat().st_mtime)
    except OSError:
        return None
    return NamedModel(name=path.name, path=path, created=created, is_fine_tuned=False)


def _hindrance(root: Path, path: Path) -> str | None:
    """Why that entry of a models directory is no model, as the rest of a sentence; else None."""
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            return (
                f"is a link that leads out of {root}, which is not followed; move the model there, "
                "or name the folder that it lies in as a --models-dir too"
            )
        if not ((path / "config.json").is_file() or any(path.glob("*.gguf"))):
            return "holds neither a config.json nor a .gguf file, so it is no model"
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError before 3.13
        return f"cannot be looked at: {getattr(error, 'strerror', None) or error}"
    return None
