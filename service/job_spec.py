"""From what a user asked to what a run does: every "auto" settled once, every limit checked.

The rules are in `hyperparameters.py`. What comes out is echoed in the job and is never decided
again; only the microbatch, which depends on real lengths in tokens, waits for the prepared data.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.engine import (
    NUM_ANSWERS,
    ModelError,
    ModelSpec,
    UnknownFamily,
    read_model_spec,
)

from .computing import compiles, compute_dtype
from .errors import ApiError
from .estimate import estimate_plan
from .hyperparameters import DEFAULTS, check_asked, method_values, row_rules, settle
from .method import kind_of, method_of, place_of_settings, settings_of, speaking_of
from .prepare_request import PrepareRequest
from .run_settings import (
    RUN_DEFAULTS,
    asked_exports,
    checkpoint_values,
    columns_of,
    free_values,
    shown_settings,
    state_format,
    told_values,
)
from .site import Site
from .survey import Survey, survey_file
from .tracking import check_integrations


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The files that a job reads, as paths, and the names that its user knows them by."""

    model_dir: Path
    training_file: Path
    validation_file: Path | None = None
    training_name: str = ""
    validation_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """A create request with nothing left open.

    `train_config_values` are the fields of TrainConfig that do not depend on prepared data.
    """

    method: dict[str, Any]
    hyperparameters: dict[str, Any]
    seed: int
    train_config_values: dict[str, Any]
    plan: dict[str, Any]
    settings: dict[str, Any]
    warnings: tuple[str, ...]


def resolve_job(body: Mapping[str, Any], sources: Sources, site: Site) -> ResolvedJob:
    """Settle a create body (`CreateJob.body()`). ApiError when it cannot be done, and why.

    Looks at the files for a few seconds at most; call it in a thread.
    """
    with speaking_of(place_of_settings(kind_of(body))):
        return _resolve(body, sources, site)


def _resolve(body: Mapping[str, Any], sources: Sources, site: Site) -> ResolvedJob:
    kind = kind_of(body)
    spec = read_spec(sources.model_dir, str(body["model"]))
    look = partial(survey_file, kind=kind, columns=columns_of(body))
    name = sources.training_name or sources.training_file.name
    survey = look(sources.training_file, param="training_file", name=name)
    longest = survey.longest_tokens
    if other := sources.validation_file:
        seen = look(other, param="validation_file", name=sources.validation_name or other.name)
        longest = max(longest, seen.longest_tokens)
    asked = settings_of(body)
    check_asked(asked, kind, spec, has_validation=sources.validation_file is not None)
    check_export(body, asked)
    check_integrations(body)
    hyperparameters = settle(
        asked,
        kind,
        num_rows=survey.num_rows,
        max_positions=spec.max_positions,
        compiles=compiles(spec, body, asked, site),
    )
    seed = body["seed"] if body.get("seed") is not None else secrets.randbelow(2**31)
    values = train_values(body, hyperparameters, seed=seed, site=site)
    longest = min(longest, NUM_ANSWERS[kind] * hyperparameters["max_seq_len"])
    return ResolvedJob(
        method=method_of(kind, hyperparameters),
        hyperparameters=hyperparameters,
        seed=seed,
        train_config_values=values,
        plan=estimate_plan(
            spec,
            values,
            site,
            longest_row_tokens=longest,
            mean_row_tokens=min(survey.mean_tokens, longest),
            num_steps=planned_steps(values, survey.num_rows),
            given=body.keys(),
        ),
        settings=shown_settings(body, values),
        warnings=tuple(find_warnings(body, survey, site)),
    )


def check_export(body: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """ApiError for adapters that are to be exported and not trained."""
    export, _ = asked_exports(body)
    if export.get("format") == "adapter" and not asked.get("adapter"):
        message = "export is of adapters, and the job trains none; give adapter, or format hf."
        raise ApiError(400, message, param="export", code="invalid_value")


def planned_steps(values: Mapping[str, Any], num_rows: int) -> int:
    """Optimizer steps over so many rows, as the engine counts them."""
    batch, epochs = int(values["batch_rows"]), int(values["num_epochs"])
    steps = math.ceil(num_rows / batch) * epochs
    most: int | None = values["max_steps"]
    return steps if most is None else min(steps, most)


def train_values(
    body: Mapping[str, Any], settled: Mapping[str, Any], *, seed: int, site: Site
) -> dict[str, Any]:
    """The fields of TrainConfig for settled hyperparameters; data set and model are still open."""
    rules = row_rules(settled)
    deterministic = body.get("deterministic")
    return {
        "seed": seed,
        "device": site.device,
        "compute_dtype": compute_dtype(body, site),
        "state_format": state_format(body),
        "clip_mode": settled["clip_mode"],
        "max_grad_norm": settled["max_grad_norm"] or DEFAULTS["max_grad_norm"],
        "learning_rate": settled["learning_rate"],
        "lr_schedule": settled["lr_scheduler"],
        "warmup_ratio": settled["warmup_ratio"],
        "weight_decay": settled["weight_decay"],
        "batch_rows": rules["batch_rows"],
        "microbatch_rows": rules["microbatch_rows"],
        "packing": settled.get("packing", "on"),  # jobs from before there was a choice have none
        "compile": settled.get("compile", "off"),  # likewise
        "microbatch_tokens": settled.get("microbatch_tokens"),
        "num_epochs": settled["n_epochs"],
        "max_steps": settled["max_steps"],
        "loss_chunk_tokens": settled["loss_chunk"],
        "router_aux_loss_coef": settled.get("router_aux_loss_coef"),  # likewise
        **method_values(settled, kind_of(body)),
        "deterministic": RUN_DEFAULTS["deterministic"] if deterministic is None else deterministic,
        "eval_every_steps": settled["eval_every"],
        **told_values(settled),
        **checkpoint_values(settled),
        "device_bytes": within(body, "device_bytes", site.device_bytes),
        "host_bytes": within(body, "host_bytes", site.host_bytes),
        "strategy": body.get("strategy") or RUN_DEFAULTS["strategy"],
        "volumes": site.volumes,
        "calibrate": site.calibrate,
        **free_values(body),
    }


def within(body: Mapping[str, Any], name: str, limit: int | None) -> int | None:
    """A job's own budget, or the site's. ApiError when it asks for more than the site gives."""
    asked: int | None = body.get(name)
    if asked is not None and limit is not None and asked > limit:
        message = f"{name} is {asked}; this daemon gives a job at most {limit}."
        raise ApiError(400, message, param=name, code="over_budget")
    return limit if asked is None else asked


def read_spec(model_dir: Path, name: str) -> ModelSpec:
    """The model's spec, from its files' headers; ApiError for a broken or unknown one, OSError."""
    try:
        return read_model_spec(model_dir)
    except UnknownFamily as e:
        raise ApiError(400, f"Model {name}: {e}.", param="model", code="unknown_family") from e
    except ModelError as e:
        raise ApiError(400, f"Model {name}: {e}.", param="model", code="bad_model") from e


def find_warnings(body: Mapping[str, Any], survey: Survey, site: Site) -> list[str]:
    """What the user should know before the job runs."""
    warnings = []
    if survey.is_estimate:
        warnings.append(
            f"the training file is large: {survey.num_rows} rows are an estimate, from which "
            "batch_size and n_epochs were chosen where they were left open"
        )
    if site.device == "cpu" and body.get("compute_dtype") == "bfloat16":
        warnings.append("bfloat16 on a CPU is many times slower than float32")
    return warnings


def prepare_request(
    body: Mapping[str, Any],
    sources: Sources,
    site: Site,
    *,
    job_dir: Path,
    cache_dir: Path,
    after_seq: int = 0,
) -> PrepareRequest:
    """What the prepare child is asked for a job whose body holds settled hyperparameters."""
    settled = settings_of(body)
    rules = row_rules(settled)
    return PrepareRequest(
        job_dir=str(job_dir),
        cache_dir=str(cache_dir),
        model_dir=str(sources.model_dir),
        training_file=str(sources.training_file),
        validation_file=str(sources.validation_file) if sources.validation_file else None,
        max_seq_len=rules["max_seq_len"],
        overlong=rules["overlong"],
        config=train_values(body, settled, seed=body["seed"], site=site),
        box=asdict(site.box()),
        after_seq=after_seq,
        train_on=rules["train_on"],
        columns=columns_of(body),
        names={
            path.name: name
            for path, name in (
                (sources.training_file, sources.training_name),
                (sources.validation_file, sources.validation_name),
            )
            if path and name
        },
    )
