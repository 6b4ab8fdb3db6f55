"""What fits in place of a run that does not: the nearest values, each planned again. Pure."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .account import JobSize
from .capacity import Box, CannotFit, check_fit, find_home
from .config import TrainConfig
from .fit import fit_microbatch, least_microbatches
from .model import ModelSpec
from .plan import make_plan

BUDGETS = ("host_bytes", "device_bytes")
MOST_TIMES = 64  # of a budget that was given, and no more is named
_CLOSE = 64  # a budget is found to within this part of it
_WHOLE_BYTES = 1 << 20  # and then rounded up to a multiple, where that is little of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """What would fit. Keys are fields of TrainConfig, and `longest_row_tokens`.

    `alone`: each value by itself. `together`: both budgets, where both are too small for any way to
    run it; one of them alone, where it is enough at all, is then far more. A budget of either is
    the least that fits, to within 3 %. `beyond`: those of them that are more than there is here,
    and what there is.
    """

    alone: Mapping[str, Any] = field(default_factory=dict)
    together: Mapping[str, int] = field(default_factory=dict)
    beyond: Mapping[str, int] = field(default_factory=dict)

    def in_words(
        self,
        *,
        say: Callable[[str, str], str] = "{} {}".format,
        size_of: Callable[[int], str] = str,
    ) -> str:
        """As a sentence without its end; empty where nothing would fit.

        `say` puts a setting and its value into the words of whoever reads it.
        """

        def one(name: str, value: Any) -> str:
            text = say(name, size_of(value) if name in BUDGETS else str(value))
            if name in self.beyond and value > self.beyond[name]:
                here = self.beyond[name] // _WHOLE_BYTES * _WHOLE_BYTES
                text += f" (more than the {size_of(here)} that there are here)"
            return text

        alone = [one(*pair) for pair in self.alone.items()]
        each = ", each by itself" if len(alone) > 1 else ""
        parts = [f"what would fit{each}: {', '.join(alone)}"] if alone else []
        if self.together:
            both = " with ".join(one(*pair) for pair in self.together.items())
            parts.append(f"what would fit{' too' if alone else ''}: {both}")
        return "; ".join(parts)


def nearest_fit(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    longest_row_tokens: int,
    box: Box,
    job: JobSize | None = None,
    most: Mapping[str, int | None] | None = None,
) -> Nearest:
    """What fits in place of a run that does not. The arguments are those it was refused with.

    `most` are budgets (bytes) that a run may be given here; what the box has, where it says
    nothing. A run that fits, and is refused for the wear of the drives, is told how many steps it
    may have, or which share it takes.
    """

    def fits(longest: int = longest_row_tokens, **settings: Any) -> bool:
        for one in least_microbatches(replace(config, **settings), longest):
            with suppress(CannotFit):
                check_fit(spec, one, longest_row_tokens=longest, box=box)
                return True
        return False

    if fits():
        return Nearest(alone=_within_wear(spec, config, longest_row_tokens, box, job))
    alone: dict[str, Any] = {
        "batch_rows": _largest(lambda rows: fits(batch_rows=rows), config.batch_rows),
        "longest_row_tokens": _largest(fits, longest_row_tokens),
    }
    if config.strategy != "auto" and fits(strategy="auto"):
        alone["strategy"] = "auto"
    if config.clip_mode == "exact" and fits(clip_mode="per_layer"):
        alone["clip_mode"] = "per_layer"
    given: dict[str, int] = {name: getattr(config, name) or getattr(box, name) for name in BUDGETS}
    least = _least(spec, config, longest_row_tokens, box)
    for name in BUDGETS:
        alone[name] = _smallest(partial(_with, fits, name), given[name], least[name])
    alone = {name: value for name, value in alone.items() if value is not None}
    together: dict[str, int] = {}
    if all(least[name] > given[name] for name in BUDGETS) and fits(**least):
        together = dict(least)
        for name in BUDGETS:
            found = _smallest(partial(_with, partial(fits, **together), name), 1, together[name])
            together[name] = found or together[name]
    wears_little = partial(
        _wears_little, spec, config, longest=longest_row_tokens, box=box, job=job
    )
    alone = {name: value for name, value in alone.items() if wears_little({name: value})}
    together = together if wears_little(together) else {}
    here = {name: _here(name, given, box, most or {}) for name in BUDGETS}
    beyond = {
        name: here[name]
        for name in BUDGETS
        if max(alone.get(name, 0), together.get(name, 0)) > here[name]
    }
    return Nearest(alone=alone, together=together, beyond=beyond)


def _here(name: str, given: Mapping[str, int], box: Box, most: Mapping[str, int | None]) -> int:
    """The most of a budget that there is; on a CPU both are parts of the same memory."""
    limit = most.get(name)
    if limit is not None:
        return limit
    if box.device != "cpu":
        return int(getattr(box, name))
    other = next(one for one in BUDGETS if one != name)
    return box.host_bytes + box.device_bytes - min(given[other], int(getattr(box, other)))


def _least(spec: ModelSpec, config: TrainConfig, longest: int, box: Box) -> dict[str, int]:
    """What the placement takes that takes least, where nothing fits."""
    found = []
    for one in least_microbatches(config, longest):
        home = find_home(spec, one, longest_row_tokens=longest, box=box, weigh=False)
        found.append((home.sizes.device(home.placement), home.sizes.host(home.placement)))
    device, host = min(found)
    return {"device_bytes": device, "host_bytes": host}


def _with(fits: Callable[..., bool], name: str, size: int) -> bool:
    return fits(**{name: size})


def _largest(fits: Callable[[int], bool], limit: int) -> int | None:
    """The largest number below `limit` that fits, to within a sixteenth; None when none does."""
    if limit < 2 or not fits(1):
        return None
    low, high = 1, limit
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smallest(fits: Callable[[int], bool], given: int, guess: int) -> int | None:
    """The smallest number above `given` that fits, to within a 64th, rounded up; None where none
    does up to MOST_TIMES of it, nor `guess`."""
    low, high = given, max(guess, given)
    if not fits(high):
        low, high = high, MOST_TIMES * given
        if high <= low or not fits(high):
            return None
    elif not fits(just_below := high - max(1, high // _CLOSE)):
        low = just_below
    while high - low > max(1, high // _CLOSE):
        middle = min(2 * low, (low + high) // 2)
        low, high = (low, middle) if fits(middle) else (middle, high)
    rounded = -(-high // _WHOLE_BYTES) * _WHOLE_BYTES
    return rounded if rounded - high < high // 128 and fits(rounded) else high


def _within_wear(
    spec: ModelSpec, config: TrainConfig, longest: int, box: Box, job: JobSize | None
) -> dict[str, Any]:
    """Of a run that takes too much of the drives' life: the steps that it may have, and the share
    that it takes. Nothing where the rated life is not known."""
    limit, steps = config.max_wear_share, (job or JobSize()).num_steps
    if limit is None or steps is None or job is None:
        return {}
    unlimited = replace(config, max_wear_share=None)
    fitted = fit_microbatch(spec, unlimited, longest_row_tokens=longest, box=box)
    wear = make_plan(spec, fitted, longest_row_tokens=longest, box=box, job=job).forecast.wear
    if wear.share is None or wear.job_bytes is None or not wear.rated_bytes:
        return {}
    once = wear.job_bytes - steps * wear.step_bytes
    allowed = math.floor((limit * wear.rated_bytes - once) / wear.step_bytes)
    share = math.ceil(1000 * wear.share) / 1000
    fewer = {"max_steps": allowed} if allowed > 0 else {}
    return {**fewer, "max_wear_share": share}


def _wears_little(
    spec: ModelSpec, config: TrainConfig, settings: Mapping[str, Any], longest: int, box: Box,
    job: JobSize | None,
) -> bool:  # fmt: skip
    """Whether the run with these settings keeps to its share of the drives' life, if it has one."""
    if config.max_wear_share is None or job is None or job.num_steps is None:
        return True
    changed = dict(settings)
    longest = changed.pop("longest_row_tokens", longest)
    if config.max_steps is None:
        rows = changed.get("batch_rows", config.batch_rows)
        job = replace(job, num_steps=math.ceil(job.num_steps * config.batch_rows / rows))
    try:
        other = replace(config, **changed)
        fitted = fit_microbatch(spec, other, longest_row_tokens=longest, box=box)
        make_plan(spec, fitted, longest_row_tokens=longest, box=box, job=job)
    except CannotFit:
        return False
    return True
