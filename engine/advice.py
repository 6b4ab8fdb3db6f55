"""What would make a run faster: each change planned again, its effect predicted.

Pure, no torch.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.storage import VolumeRoom

from .account import JobSize, steps_between_commits
from .capacity import Box, CannotFit
from .config import TrainConfig
from .forecast import RESOURCE_NAMES
from .model import ModelSpec
from .packing import RowLengths
from .plan import Plan, make_plan
from .rates import VolumeRates

NUM_CHANGES = 3
_LEAST_GAIN = 0.02  # smaller ones are within the error of the prediction
_COMMIT_SHARE = 0.05  # of a step's time: commits that take less are not worth rarer ones
_SAMPLE_ROWS = 8192  # of the data, that a change is judged by
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change and its predicted effect. `gain`: 0.38 for 38 % more tokens a second."""

    change: str
    tokens_per_second: float
    gain: float
    bottleneck: str

    def __str__(self) -> str:
        return f"{self.change}: bound by {self.bottleneck}, {100 * self.gain:+.0f} % tokens/s"


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    config: TrainConfig
    box: Box


def find_changes(
    plan: Plan,
    spec: ModelSpec,
    config: TrainConfig,
    *,
    longest_row_tokens: int,
    box: Box,
    job: JobSize | None = None,
    lengths: RowLengths | None = None,
) -> list[Change]:
    """The three changes that would help most, the best first; fewer when fewer would."""
    now = plan.forecast.tokens_per_second
    rows = lengths and lengths.sample(_SAMPLE_ROWS)
    found = []
    for variant in _variants(plan, config, box):
        try:
            other = make_plan(
                spec,
                replace(variant.config, max_wear_share=None),
                longest_row_tokens=longest_row_tokens,
                box=variant.box,
                job=job,
                lengths=rows,
            ).forecast
        except CannotFit:
            continue
        gain = other.tokens_per_second / now - 1
        if gain >= _LEAST_GAIN:
            found.append(
                Change(
                    change=variant.name,
                    tokens_per_second=other.tokens_per_second,
                    gain=gain,
                    bottleneck=RESOURCE_NAMES[other.bottleneck],
                )
            )
    return sorted(found, key=lambda one: -one.gain)[:NUM_CHANGES]


def _variants(plan: Plan, config: TrainConfig, box: Box) -> Iterator[_Variant]:
    twice = 2 * config.batch_rows
    yield _Variant(f"2 x tokens per step ({twice} rows)",
                   replace(config, batch_rows=twice), box)  # fmt: skip
    rows = 2 * config.microbatch_rows
    if rows <= config.batch_rows:
        tokens = config.microbatch_tokens and 2 * config.microbatch_tokens
        size = f"{tokens} tokens" if tokens else f"{rows} rows"
        larger = replace(config, microbatch_rows=rows, microbatch_tokens=tokens)
        yield _Variant(f"microbatches of {size}", larger, box)
    if config.strategy != "auto":
        yield _Variant("strategy auto", replace(config, strategy="auto"), box)
    commit = plan.forecast.commit.seconds
    every = math.ceil(steps_between_commits(config, plan.forecast.step.seconds))
    if commit / every > _COMMIT_SHARE * plan.forecast.step.seconds:
        rarer = 10 * every
        seldom = replace(config, commit_every_steps=rarer, commit_every_minutes=None)
        yield _Variant(f"a commit every {rarer} steps", seldom, box)
    if "nvme" in plan.tiers or commit:
        yield _Variant("2 x as many drives", config, _with_twice_the_drives(box))
    host = 2 * (config.host_bytes or box.host_bytes)
    yield _Variant(f"2 x host memory ({host / GIB:.0f} GiB)",
                   replace(config, host_bytes=host), box)  # fmt: skip
    device = 2 * (config.device_bytes or box.device_bytes)
    yield _Variant(f"2 x device memory ({device / GIB:.0f} GiB)",
                   replace(config, device_bytes=device), box)  # fmt: skip


def _with_twice_the_drives(box: Box) -> Box:
    """Every volume and its rates a second time, under another name."""
    rates = box.known_rates()
    volumes: dict[str, VolumeRoom | int] = {}
    speeds: dict[str, VolumeRates] = {}
    for path, room in box.volumes.items():
        other = f"{path} (second)"
        twin = room if isinstance(room, int) else replace(room, path=other, device=None)
        volumes |= {path: room, other: twin}
        speed = rates.volumes.get(path, rates.default_volume)
        speeds |= {path: speed, other: speed}
    return replace(box, volumes=volumes, rates=replace(rates, volumes=speeds))


def plan_report(
    plan: Plan,
    spec: ModelSpec,
    config: TrainConfig,
    *,
    longest_row_tokens: int,
    box: Box,
    job: JobSize | None = None,
    lengths: RowLengths | None = None,
) -> dict[str, Any]:
    """The plan as programs get it: what was decided, what it will take, what would help."""
    changes = find_changes(
        plan,
        spec,
        config,
        longest_row_tokens=longest_row_tokens,
        box=box,
        job=job,
        lengths=lengths,
    )
    return {
        **plan.to_dict(),
        "microbatch_rows": config.microbatch_rows,
        "microbatch_tokens": config.microbatch_tokens,
        "longest_row_tokens": longest_row_tokens,
        "changes": [{**asdict(one), "text": str(one)} for one in changes],
    }
