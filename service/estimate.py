"""The plan of a job before its rows were tokenized, or what to change so that there can be one."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from headrace.engine import (
    NUM_ANSWERS,
    BadSetting,
    Box,
    CannotFit,
    JobSize,
    ModelSpec,
    StrategyConflict,
    TrainConfig,
    fit_microbatch,
    make_plan,
    method_spec,
    nearest_fit,
    plan_report,
)

from .asked_as import message_of, name_of
from .errors import ApiError
from .method import HYPERPARAMETERS
from .site import Site

MEMORY = ("device_bytes", "host_bytes")


def estimate_plan(
    spec: ModelSpec,
    values: Mapping[str, Any],
    site: Site,
    *,
    longest_row_tokens: int,
    mean_row_tokens: float,
    num_steps: int,
    given: Collection[str] = (),
) -> dict[str, Any]:
    """Memory for the longest row, times of the mean one. ApiError when it cannot fit: the numbers,
    what does, and the field to blame if it is among the `given`."""
    try:
        config = TrainConfig.from_dict({"model": "", "dataset": "", **values})
        mean = mean_row_tokens if config.packing == "on" else None  # else padded to the longest
        job = JobSize(num_steps=num_steps, row_tokens=mean, rows_are_estimate=True)
        spec = method_spec(spec, config)
        box = site.box()
        fitted = fit_microbatch(spec, config, longest_row_tokens=longest_row_tokens, box=box)
        plan = make_plan(spec, fitted, longest_row_tokens=longest_row_tokens, box=box, job=job)
    except CannotFit as e:
        param, hint = e.setting and name_of(e.setting), None
        if e.setting is not None:
            better, hint = what_fits(
                spec, config, site, longest_row_tokens=longest_row_tokens, box=box, job=job
            )
        if e.setting in MEMORY:
            param = better or (e.setting if e.setting in given else None)
        message = f"The job cannot fit: {message_of(e)}."
        raise ApiError(400, message, param=param, code="cannot_fit", hint=hint) from e
    except StrategyConflict as e:
        raise ApiError(400, f"{e}.", param="strategy", code="strategy_conflict") from e
    except BadSetting as e:
        param = f"{HYPERPARAMETERS}.{name_of(e.setting)}" if e.setting else HYPERPARAMETERS
        raise ApiError(400, f"{e}.", param=param, code="invalid_value") from e
    report = plan_report(
        plan, spec, fitted, longest_row_tokens=longest_row_tokens, box=box, job=job
    )
    return {**report, "total_steps": num_steps, "longest_row_is_estimate": True}


def what_fits(
    spec: ModelSpec,
    config: TrainConfig,
    site: Site,
    *,
    longest_row_tokens: int,
    box: Box,
    job: JobSize,
) -> tuple[str | None, str | None]:
    """The field to blame where it is one, and the nearest values that would fit on the site's box,
    by the names of a create body. The arguments are those that the job was refused with."""
    nearest = nearest_fit(
        spec, config, longest_row_tokens=longest_row_tokens, box=box, job=job,
        most={"host_bytes": site.host_bytes, "device_bytes": site.device_bytes},
    )  # fmt: skip
    alone = dict(nearest.alone)
    if "longest_row_tokens" in alone:  # a row has all its answers, each of them up to a length
        alone["longest_row_tokens"] //= NUM_ANSWERS[config.objective]
    nearest = replace(nearest, alone=alone)
    words = nearest.in_words(say=lambda name, value: f"{name_of(name)} {value}")
    hint = f"{words[:1].upper()}{words[1:]}." if words else None
    return "strategy" if "strategy" in nearest.alone else None, hint
