"""/v1/models: what a job can start from."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from ..answers import Deleted, Model, ModelList
from ..contract import Daemon
from ..errors import ApiError, not_found
from ..jobs import InUse
from ..model_names import NamedModel, find_model, known_models, search_models
from ..removal import remove_model
from ..shapes import model_object
from ..strict import Whole
from .common import Contains, TheDaemon, told
from .description import BAD, MISSING, answers

router = APIRouter(prefix="/v1/models", tags=["models"])

Name = Annotated[
    str, Path(description="The id of a model or a checkpoint; it may hold colons and slashes.")
]
ModelLimit = Annotated[
    int | None, Whole(1, 10_000), Query(description="At most so many; all, left out.")
]
MOST = 1 << 40  # models that nobody has


@router.get("", **answers(ModelList, BAD))
def list_models(daemon: TheDaemon, contains: Contains = None, limit: ModelLimit = None) -> Response:
    """Models made by jobs, then the folders of the models directories."""
    roots, journal = daemon.settings.models_dir, daemon.journal
    if contains is None:
        found = known_models(roots, journal)
    else:
        found = search_models(roots, journal, contains=contains, limit=(limit or MOST) + 1)
    shown = [model_object(model) for model in found[:limit]]
    return told({"object": "list", "data": shown, "has_more": len(found) > len(shown)})


@router.get("/{name:path}", **answers(Model, MISSING))
def retrieve(name: Name, daemon: TheDaemon) -> dict[str, Any]:
    """One model, also a checkpoint by its name."""
    return model_object(_require(daemon, name))


@router.delete("/{name:path}", **answers(Deleted, BAD, MISSING))
def delete(name: Name, daemon: TheDaemon) -> dict[str, Any]:
    """Remove a model that a job made, with all that the job exported."""
    model = _require(daemon, name)
    made = daemon.journal.model(name)
    if made is None:
        message = f"Model {name!r} is not a finished job's; only those are deleted here."
        raise ApiError(400, message, param="model", code="not_deletable")
    try:
        remove_model(daemon.journal, made)
    except InUse as e:
        message = f"Model {name!r} is in use by {', '.join(e.users)}; cancel that first."
        raise ApiError(400, message, param="model", code="model_in_use") from None
    return {"id": model.name, "object": "model", "deleted": True}


def _require(daemon: Daemon, name: str) -> NamedModel:
    model = find_model(name, daemon.settings.models_dir, daemon.journal)
    if model is None:
        raise not_found("model", name, param="model")
    return model
