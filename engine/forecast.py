"""What a run will cost, said before it: seconds, bytes, the bottleneck, wear, money. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .account import (
    JobSize,
    Money,
    Wear,
    Written,
    checkpoint_cost,
    commit_cost,
    money,
    reference_seconds,
    resident_bytes,
    sample_seconds,
    steps_between_commits,
    wear,
)
from .condition import Condition, conditions, step_tokens_needed
from .config import ClipWay
from .cost import StepCost, step_cost
from .homes import Placement, Way
from .rates import Origin, Rates, VolumeRates
from .sizes import Sizes
from .step_cost import StepModel
from .ways import way_without_bet

# How far a step may be from its prediction, below and above, by what the rates are worth.
MARGINS: Mapping[Origin, tuple[float, float]] = {
    "measured": (0.9, 1.2),
    "described": (0.8, 1.5),
    "default": (0.5, 2.0),
}
# And by rows whose tokens are guessed from their bytes: prose has up to 5 to a token, code 3.
ROWS_MARGIN = (0.7, 1.5)
_NEVER_STEPS = 1e6  # a commit that is due later than this comes with the last step
RESOURCE_NAMES = {
    "compute": "compute", "drive": "the drive", "h2d": "the link to the device",
    "d2h": "the link from the device", "host": "the processor's updates",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A number with what it may be at least and at most."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The prediction for one plan. Times are seconds, sizes bytes.

    `ways` gives the step in each way that the run may take it; `step` is that of `way`.
    `step_tokens_needed`: tokens of a step from which compute is longer than each resource, over
    the step as a whole; None when no number is enough. `doubts`: why the rates that it goes by are
    worth less than measured ones, in words. `reference_seconds`: of preferences, what is
    computed before the first step; `sample_seconds`: what texts add to each evaluation.
    `job_seconds` is None for a job of unknown length.
    """

    box: str
    origin: Origin
    measured_at: str
    doubts: tuple[str, ...]
    way: Way
    tokens_per_step: int
    step: StepCost
    ways: dict[Way, float]
    step_seconds: Span
    tokens_per_second: float
    bottleneck: str
    next_bottleneck: str
    sentence: str
    conditions: tuple[Condition, ...]
    step_tokens_needed: dict[str, int | None]
    commit: Written
    checkpoint: Written
    reference_seconds: float
    sample_seconds: float
    num_steps: int | None
    job_seconds: Span | None
    wear: Wear
    money: Money | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def forecast(
    model: StepModel,
    sizes: Sizes,
    placement: Placement,
    clip_way: ClipWay,
    way: Way,
    *,
    drives: VolumeRates,
    job: JobSize,
    device_bytes: int,
) -> Forecast:
    """Predict the run of a placement. `device_bytes`: what one device has for it."""
    config, rates = model.config, model.rates
    step = step_cost(model, placement, way, drives)
    ways = {way: step.seconds}
    if clip_way == "auto":
        ways |= _both_ways(model, placement, drives)
    commit = commit_cost(model, placement, way, drives)
    state = sum(sizes.state_bytes)
    every = steps_between_commits(config, step.seconds)
    per_step = _step_span(step, ways, rates, rows_are_estimate=job.rows_are_estimate)
    rate = model.load.tokens / (step.seconds + commit.seconds / every)
    checkpoint = checkpoint_cost(model.spec, config, drives)
    reference = reference_seconds(step, config, job)
    before = state / drives.write + reference
    seconds = _job_seconds(per_step, commit, checkpoint, before, job, every)
    first, second = _bottlenecks(step)
    return Forecast(
        box=rates.name,
        origin=rates.origin,
        measured_at=rates.measured_at,
        doubts=rates.doubts,
        way=way,
        tokens_per_step=model.load.tokens,
        step=step,
        ways=ways,
        step_seconds=per_step,
        tokens_per_second=rate,
        bottleneck=first,
        next_bottleneck=second,
        sentence=_sentence(step, commit, every),
        conditions=tuple(conditions(model, placement, way, drives)),
        step_tokens_needed=step_tokens_needed(model, placement, way, drives),
        commit=commit,
        checkpoint=checkpoint,
        reference_seconds=reference,
        sample_seconds=sample_seconds(sizes, placement, rates, drives),
        num_steps=job.num_steps,
        job_seconds=seconds,
        wear=wear(step, commit, state_total_bytes=state, config=config, job=job, drives=drives),
        money=None
        if rates.prices is None
        else money(
            rates.prices,
            tokens_per_second=rate,
            job_seconds=None if seconds is None else seconds.expected,
            in_memory_bytes=resident_bytes(sizes.device_parts(placement), state),
            device_bytes=device_bytes,
        ),
    )


def _step_span(
    step: StepCost, ways: Mapping[Way, float], rates: Rates, *, rows_are_estimate: bool
) -> Span:
    """What a step may take, in whichever of these ways."""
    low, high = MARGINS["default" if rates.doubts else rates.origin]
    if rows_are_estimate:
        low, high = low * ROWS_MARGIN[0], high * ROWS_MARGIN[1]
    return Span(expected=step.seconds, low=low * min(ways.values()), high=high * max(ways.values()))


def _both_ways(model: StepModel, placement: Placement, drives: VolumeRates) -> dict[Way, float]:
    """A step that bets on no clipping and is right, and one that makes no bet."""
    ways: tuple[Way, ...] = ("speculative", way_without_bet(model.config))
    return {way: step_cost(model, placement, way, drives).seconds for way in ways}


def _job_seconds(
    step: Span,
    commit: Written,
    checkpoint: Written,
    seconds_before: float,
    job: JobSize,
    every: float,
) -> Span | None:
    """What comes before the first step, steps, commits and export; evaluations come on top."""
    if job.num_steps is None:
        return None
    rest = seconds_before + checkpoint.seconds + job.num_steps / every * commit.seconds
    return Span(
        expected=job.num_steps * step.expected + rest,
        low=job.num_steps * step.low + rest * step.low / step.expected,
        high=job.num_steps * step.high + rest * step.high / step.expected,
    )


def _bottlenecks(step: StepCost) -> tuple[str, str]:
    """The resource that bounds most of the step, and the one that would if it were no bound."""
    bound: dict[str, float] = {}
    then: dict[str, float] = {}
    for phase in step.phases:
        ranked = sorted(phase.busy_seconds.items(), key=lambda one: -one[1])
        bound[ranked[0][0]] = bound.get(ranked[0][0], 0.0) + ranked[0][1]
    first = max(bound, key=lambda name: bound[name])
    for phase in step.phases:
        others = {name: s for name, s in phase.busy_seconds.items() if name != first}
        second = max(others, key=lambda name: others[name])
        then[second] = then.get(second, 0.0) + others[second]
    return first, max(then, key=lambda name: then[name])


def _sentence(step: StepCost, commit: Written, every: float) -> str:
    """What the step waits for, phase by phase, with the seconds."""
    parts = []
    for phase in step.phases:
        ranked = sorted(phase.busy_seconds.items(), key=lambda one: -one[1])
        (first, most), (second, next_most) = ranked[0], ranked[1]
        parts.append(
            f"{phase.phase} {phase.seconds:.3g} s, bound by {RESOURCE_NAMES[first]} "
            f"({most:.3g} s; next {RESOURCE_NAMES[second]}, {next_most:.3g} s)"
        )
    if commit.seconds:
        steps = "every step" if every == 1 else f"every {every:.4g} steps"
        when = steps if every < _NEVER_STEPS else "at the end"
        parts.append(f"a commit of {commit.seconds:.3g} s {when}")
    return "; ".join(parts)
