"""`resume_from`: what a new job starts from, when that is another job or a checkpoint.

A checkpoint and a finished job give their weights, as a model does. A failed job gives its training
state: the new job goes on from its last commit, bit for bit as the failed one would have, and so
with the same settings. The state is then the new job's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ApiError
from .job_state import has_state, spec_of
from .jobs import JobRecord
from .journal import Journal
from .method import kind_of, method_of, settings_of
from .model_names import find_model
from .run_settings import PLACEMENT, checkpoint_values, free_values, shown_settings, told_values
from .settings import Settings

FREE = ("priority", "limits", "metadata", "suffix", "export", "integrations", *PLACEMENT,
        "commit_every", "durability", "keep_commits")  # fmt: skip
FREE_HYPERPARAMETERS = (
    "eval_every",
    "early_stopping",
    "checkpoint_every",
    "keep_last",
    "keep_best",
    "rehearsal",
    "row_losses",
    "sample_prompts",
    "sample_rows",
    "sample_tokens",
    "sample_prompt_tokens",
    "sample_temperature",
    "sample_seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A settled request that goes on with the training state of a failed job."""

    body: dict[str, Any]
    state_name: str
    method: dict[str, Any]
    hyperparameters: dict[str, Any]
    seed: int
    plan: dict[str, Any]
    settings: dict[str, Any]
    warnings: tuple[str, ...] = ()


def follow(
    body: dict[str, Any], settings: Settings, journal: Journal
) -> dict[str, Any] | Continuation:
    """A create body whose `resume_from` is settled: another model, or a Continuation.

    ApiError: it leads to nothing, to a job that has not ended, or to other settings.
    """
    name = str(body["resume_from"])
    job = journal.job(name)
    if job is not None and job.status in ("failed", "cancelled"):
        return _go_on(body, job, settings, journal)
    if job is not None and job.status != "succeeded":
        hint = "Resume it." if job.status == "paused" else "Wait for its end."
        raise _refuse(f"Job {name} is {job.status}; it is not over.", hint=hint)
    made_by = job or _maker(name, journal)
    model = find_model(job.fine_tuned_model or "" if job else name, settings.models_dir, journal)
    if model is None or made_by is None:
        raise _refuse(f"There is no job and no checkpoint {name!r}, or its weights are gone.")
    if body["model"] not in (name, model.name, made_by.model):
        message = f"model is {body['model']!r}, but {name} was trained from {made_by.model!r}."
        raise ApiError(400, message, param="model", code="invalid_value")
    return {**body, "model": model.name}


def continued_spec(job: JobRecord, old_spec: Mapping[str, Any]) -> dict[str, Any]:
    """The TrainConfig of a job that goes on with another's state, from that one's."""
    settled = job.hyperparameters
    free = {**free_values(job.request), **checkpoint_values(settled), **told_values(settled)}
    return {**old_spec, **free, **_placement(job.request)}


def _placement(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in PLACEMENT if name in request}


def _go_on(
    body: Mapping[str, Any], old: JobRecord, settings: Settings, journal: Journal
) -> Continuation:
    spec = spec_of(settings.jobs_dir, old.id)
    newest = journal.jobs_of_state(old.state_name)[0]
    if newest.id != old.id:
        raise _refuse(f"Job {newest.id} goes on with the state of job {old.id} already.")
    if spec is None or not has_state(spec["volumes"], old.state_name):
        hint = "Submit it again, or start from one of its checkpoints."
        raise _refuse(f"Job {old.id} is {old.status} and has no training state.", hint=hint)
    if differences := list(_differences(body, old, spec)):
        raise _refuse(
            f"The state of job {old.id} goes on only with its own settings: "
            f"{'; '.join(differences)}.",
            code="settings_differ",
            hint="To go on otherwise, start from one of its checkpoints.",
        )
    asked = settings_of(body)
    free = {name: asked[name] for name in FREE_HYPERPARAMETERS if name in asked}
    hyperparameters = {**old.hyperparameters, **free}
    kept = {name: value for name, value in old.request.items() if name not in FREE}
    given = {name: body[name] for name in FREE if name in body}
    request = {**kept, **given, "resume_from": old.id}
    values = {**spec, **free_values(request), **_placement(request)}
    return Continuation(
        body=request,
        state_name=old.state_name,
        method=method_of(kind_of(old.request), hyperparameters),
        hyperparameters=hyperparameters,
        seed=old.seed,
        plan=old.engine.get("plan") or {},
        settings=shown_settings(request, values),
    )


def _differences(body: Mapping[str, Any], old: JobRecord, spec: Mapping[str, Any]) -> Iterator[str]:
    """What the body asks for and the old job has otherwise."""
    record = {
        "model": old.model,
        "training_file": old.training_file,
        "validation_file": old.validation_file,
        "seed": old.seed,
    }
    had = {**spec, **old.request, **record}
    asked = {name: value for name, value in body.items() if name not in FREE}
    del asked["method"]
    asked |= settings_of(body)
    had |= old.hyperparameters
    here, there = kind_of(body), kind_of(old.request)
    if here != there and (settings_of(body) or here != "supervised"):  # else none was named
        yield f"method is {there!r} there, {here!r} here"
    for name, value in asked.items():
        if name not in ("resume_from", *FREE_HYPERPARAMETERS) and had.get(name) != value:
            yield f"{name} is {had.get(name)!r} there, {value!r} here"


def _maker(name: str, journal: Journal) -> JobRecord | None:
    """The job that made a checkpoint or a model."""
    made = journal.checkpoint(name) or journal.model(name)
    return journal.job(made.job_id) if made else None


def _refuse(message: str, *, code: str = "not_resumable", hint: str | None = None) -> ApiError:
    return ApiError(400, message, param="resume_from", code=code, hint=hint)
