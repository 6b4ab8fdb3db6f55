"""Where everything lives, decided and counted before the run. Pure, no torch.

`make_plan` counts every byte that the run will hold, per tier, and refuses a run that cannot fit.
Nothing in a plan changes a bit of the result; the order of a step is in visits.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

from headrace.storage import NoSpace, VolumeRoom, fit_store

from .account import JobSize, Wear
from .basis import Basis
from .config import ClipWay, StateFormat, StrategyName, TrainConfig
from .forecast import Forecast, forecast
from .homes import Order, Placement, Tier, Way, early_records
from .model import ModelSpec
from .orders import ordered_visits
from .packing import RowLengths
from .placement import choose_placement, needs_kept_grads
from .rates import Rates, default_rates, shape_key
from .sizes import MIB, Sizes
from .state_record import frozen_bytes, model_state_bytes, state_padded_bytes, state_record
from .step_cost import StepLoad, StepModel
from .strategies import with_strategy
from .visits import link_bytes
from .ways import choose_way, planned_way


class CannotFit(ValueError):
    """The run needs more of a tier than it was given; the message has the numbers.

    `setting` is the field of TrainConfig that bounds it, None for the volumes' room.
    """

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a machine has, in bytes, and what it can do a second (`rates`; None: not known).

    `volumes` maps each volume's directory to what it has for a new store; a bare number stands
    for a drive of its own with so many bytes free, all of them to be had.
    """

    device: str
    device_bytes: int
    host_bytes: int
    volumes: Mapping[str, VolumeRoom | int] = field(default_factory=dict)
    rates: Rates | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` made, also after a trip through JSON."""
        volumes = {
            path: VolumeRoom(**room) if isinstance(room, Mapping) else int(room)
            for path, room in values["volumes"].items()
        }
        rates = values.get("rates")
        known = None if rates is None else Rates.from_dict(rates)
        return cls(**{**values, "volumes": volumes, "rates": known})

    def known_rates(self) -> Rates:
        """The box's own rates, or those of a usual one of its kind."""
        return self.rates or default_rates(self.device)

    def rooms(self) -> list[VolumeRoom]:
        """What each volume has for a new store."""
        return [
            VolumeRoom(path=path, free_bytes=room) if isinstance(room, int) else room
            for path, room in self.volumes.items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions for one run. Sizes are bytes; a breakdown by purpose explains each tier."""

    strategy: StrategyName  # by whose rule; auto: the shortest step
    num_slots: int  # on the device
    num_staging: int  # in host memory, for records on NVMe
    slot_bytes: int
    tiers: tuple[Tier, ...]  # home of each record's state
    keep_layers: tuple[int, ...]  # layers whose activations stay, so that nothing is recomputed
    activation_tiers: tuple[Tier, ...]  # where each layer's input waits for its backward pass
    clip_way: ClipWay
    keep_grads: bool  # gradients have a home until the update
    grad_tier: Literal["device", "host"]  # where, for records that do not live on the device
    on_host: tuple[int, ...]  # records in host memory that the processor updates there
    host_versions: int  # of trained records in host memory
    cached: tuple[int, ...]  # records whose weights stay on the device, the rest elsewhere
    order: Order  # of a step: what goes through what
    frozen: tuple[int, ...]  # records that are only read
    state_format: StateFormat
    state_bytes: dict[StateFormat, int]  # what is trained, in this and in every other format
    frozen_bytes: int  # what is only read
    max_step_tokens: int  # computed tokens of the largest step, padding too
    device_bytes: dict[str, int]
    host_bytes: dict[str, int]
    volume_bytes: int  # of the state and, while it runs, of what waits there
    scratch_bytes: int  # of them, for layer inputs
    link_bytes: dict[str, dict[str, int]]  # way -> link -> payload bytes per step
    forecast: Forecast  # what it will take, and wait for
    basis: Basis  # of the forecast; for the run, not for those who read the plan

    def early(self, way: Way) -> frozenset[int]:
        """Records that are updated in their backward visit, before the norm is known."""
        return early_records(self.tiers, self.host_versions, way).difference(self.frozen)

    @property
    def total_device_bytes(self) -> int:
        """Peak bytes on the device."""
        return sum(self.device_bytes.values())

    @property
    def total_host_bytes(self) -> int:
        """Peak bytes in host memory, the device's not counted."""
        return sum(self.host_bytes.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the totals."""
        totals = {
            "total_device_bytes": self.total_device_bytes,
            "total_host_bytes": self.total_host_bytes,
        }
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        del shown["basis"]
        return {**shown, "forecast": self.forecast.to_dict(), **totals}


def make_plan(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    longest_row_tokens: int,
    box: Box,
    job: JobSize | None = None,
    lengths: RowLengths | None = None,
    weigh: bool = True,
) -> Plan:
    """Decide placement, count bytes, predict; raises CannotFit with the numbers.
    Not to `weigh` placements is quick: the plan is then of the first that fits.

    `longest_row_tokens` is the longest row of the training and evaluation data; where the
    `lengths` of all are known, what the largest step computes is counted instead of feared, and
    times are those of a mean step. `job`: how long the run is, where that is known; one that wears
    the drives more than it may is refused.
    """
    config = with_strategy(spec, config)
    device_limit = config.device_bytes or box.device_bytes
    host_limit = config.host_bytes or box.host_bytes
    sizes = Sizes.of(spec, config, longest_row_tokens, lengths)
    job = (job or JobSize()).completed(sizes)
    rates = box.known_rates().for_shape(shape_key(spec, config))
    drives = rates.drives(list(box.volumes))
    load = StepLoad.of(sizes, row_tokens=job.row_tokens, trained_share=job.trained_share)
    model = StepModel(sizes, rates, load)
    placement = choose_placement(
        model, sizes, drives, device_limit=device_limit, host_limit=host_limit, weigh=weigh
    )
    clip_way = choose_way(config, placement)
    chosen = {field.name: getattr(placement, field.name) for field in fields(placement)}
    chosen["activation_tiers"] = placement.waits
    predicted = forecast(
        model, sizes, placement, clip_way, planned_way(config, placement),
        drives=drives, job=job, device_bytes=device_limit,
    )  # fmt: skip
    plan = Plan(
        **chosen,
        strategy=config.strategy,
        num_staging=placement.num_staging,
        slot_bytes=sizes.slot_bytes,
        clip_way=clip_way,
        state_format=config.state_format,
        state_bytes={name: model_state_bytes(spec, name) for name in get_args(StateFormat)},
        frozen_bytes=frozen_bytes(spec),
        max_step_tokens=sizes.step_tokens,
        device_bytes=sizes.device_parts(placement),
        host_bytes=sizes.host_parts(placement),
        volume_bytes=0,  # known once it is placed, below
        scratch_bytes=sizes.scratch_bytes(placement),
        link_bytes=_bytes_by_way(spec, config, placement, load.microbatches),
        forecast=predicted,
        basis=Basis(sizes=sizes, placement=placement, rates=rates, drives=drives),
    )
    _check_memory(plan, device_limit, host_limit, sizes)
    plan = replace(plan, volume_bytes=_fit_volumes(spec, config, box, plan.scratch_bytes))
    _check_wear(plan.forecast.wear, config)
    return plan


def _bytes_by_way(
    spec: ModelSpec, config: TrainConfig, placement: Placement, microbatches: int
) -> dict[str, dict[str, int]]:
    return {
        way: link_bytes(
            spec,
            config,
            ordered_visits(
                spec, placement, way, pending=way == "deferred", microbatches=microbatches
            ),
            placement.tiers,
        )
        for way in (get_args(Way) if placement.order == "layers" else ("serial",))
    }


def _check_memory(plan: Plan, device_limit: int, host_limit: int, sizes: Sizes) -> None:
    mib = 1 / MIB
    run = "the run" if plan.strategy == "auto" else f"the run by strategy {plan.strategy}"
    if plan.total_device_bytes > device_limit:
        raise CannotFit(
            f"{run} needs {plan.total_device_bytes * mib:.0f} MiB on the device "
            f"({_largest(plan.device_bytes)}), {device_limit * mib:.0f} MiB given; "
            f"lower {_microbatch(sizes.config)}, batch_rows (now "
            f"{sizes.config.batch_rows}) or the length of the rows, or raise device_bytes",
            setting="device_bytes",
        )
    if plan.total_host_bytes > host_limit:
        raise CannotFit(
            f"{run} needs {plan.total_host_bytes * mib:.0f} MiB of host memory "
            f"({_largest(plan.host_bytes)}), {host_limit * mib:.0f} MiB given; raise host_bytes"
            + (", or choose clip_mode per_layer or none, which keep no gradients"
               if plan.keep_grads and _may_drop_grads(plan, sizes) else ""),
            setting="host_bytes",
        )  # fmt: skip


def _may_drop_grads(plan: Plan, sizes: Sizes) -> bool:
    """Whether another clip mode would keep no gradients."""
    config = replace(sizes.config, clip_mode="none")
    return not needs_kept_grads(sizes.spec, config, plan.tiers)


def _microbatch(config: TrainConfig) -> str:
    if config.microbatch_tokens is None:
        return f"microbatch_rows (now {config.microbatch_rows})"
    return f"microbatch_tokens (now {config.microbatch_tokens})"


def _check_wear(wear: Wear, config: TrainConfig) -> None:
    limit = config.max_wear_share
    if limit is None or wear.job_bytes is None:
        return
    if wear.share is None:
        raise CannotFit(
            f"max_wear_share is {limit:g}, but the rated life of the drives is not known, so it "
            f"cannot be kept; leave it out and bound the bytes with max_bytes_written instead",
            setting="max_wear_share",
        )
    if wear.share > limit:
        raise CannotFit(
            f"the job would write {wear.job_bytes / 1e12:.3g} TB, {100 * wear.share:.3g} % of the "
            f"{(wear.rated_bytes or 0) / 1e12:.4g} TB that the drives are rated for, "
            f"{100 * limit:.3g} % allowed; give it more tokens a step (batch_rows), fewer steps, "
            f"more host_bytes, or raise max_wear_share",
            setting="max_wear_share",
        )


def _fit_volumes(spec: ModelSpec, config: TrainConfig, box: Box, scratch: int) -> int:
    """Bytes of the run's store and its scratch, judged as its creation will; else CannotFit."""
    if not box.volumes:
        raise CannotFit(
            "a run needs at least one volume for its state and commits; give --volume PATH"
        )
    try:
        records = [state_record(one, config.state_format) for one in spec.records]
        layout = fit_store(
            box.rooms(), records, keep_generations=config.keep_commits, scratch_bytes=scratch
        )
        return layout.total_bytes + scratch
    except NoSpace as error:
        raise CannotFit(
            f"no room on the volumes for the run's state ({2 + config.keep_commits} copies of what "
            f"is trained, {_bytes_per_param(spec, config.state_format):.3g} bytes per parameter in "
            f"state format {config.state_format}, and one of what is frozen; {scratch / MIB:.0f} "
            f"MiB for layer inputs): {error}"
        ) from error


def _bytes_per_param(spec: ModelSpec, state_format: StateFormat) -> float:
    state = sum(state_padded_bytes(one, state_format) for one in spec.trained)
    return state / spec.num_trained_params


def _largest(parts: Mapping[str, int]) -> str:
    ranked = sorted(parts.items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in ranked)
