"""What a machine has, what a run takes of it, and the refusal where that is not enough. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from headrace.storage import NoSpace, VolumeRoom, fit_store

from .account import JobSize, Wear
from .additions import needs_kept_grads
from .config import StateFormat, TrainConfig
from .errors import Refusal, Setting
from .homes import Placement
from .model import ModelSpec
from .packing import RowLengths
from .placement import choose_placement
from .rates import Rates, VolumeRates, default_rates, shape_key
from .sizes import Sizes
from .state_record import state_padded_bytes, state_record
from .step_cost import StepModel
from .step_load import StepLoad
from .strategies import with_strategy
from .working import MIB


class CannotFit(Refusal):
    """The run needs more of a tier than it was given; the message has the numbers.

    `setting` is the field of TrainConfig that bounds it, None for the volumes' room. `needs` are
    the bytes of each kind of memory that is too small, by the name of its budget.
    """

    def __init__(
        self, *words: str | Setting, setting: str | None = None,
        needs: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*words)
        self.setting = setting
        self.needs = needs or {}


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
class Home:
    """Where a run would live on a box, and what that was judged by. Limits are bytes.

    It need not fit: where nothing does, it is the placement that takes least.
    """

    config: TrainConfig  # with what its strategy settles
    sizes: Sizes
    job: JobSize
    rates: Rates
    drives: VolumeRates
    load: StepLoad
    model: StepModel
    placement: Placement
    device_limit: int
    host_limit: int


def find_home(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    longest_row_tokens: int,
    box: Box,
    job: JobSize | None = None,
    lengths: RowLengths | None = None,
    weigh: bool = True,
) -> Home:
    """Choose the placement; the arguments are those of `make_plan`. StrategyConflict."""
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
    return Home(
        config=config, sizes=sizes, job=job, rates=rates, drives=drives, load=load, model=model,
        placement=placement, device_limit=device_limit, host_limit=host_limit,
    )  # fmt: skip


def check_fit(spec: ModelSpec, config: TrainConfig, *, longest_row_tokens: int, box: Box) -> None:
    """Raise CannotFit where `make_plan` would, for memory or for the volumes; quick, since nothing
    is predicted."""
    home = find_home(spec, config, longest_row_tokens=longest_row_tokens, box=box, weigh=False)
    check_room(spec, home, box)


def check_room(spec: ModelSpec, home: Home, box: Box) -> int:
    """Bytes that a run takes of the volumes. CannotFit with all that is too small for it."""
    scratch = home.sizes.scratch_bytes(home.placement)
    told = []
    try:
        check_memory(home)
    except CannotFit as error:
        told.append(error)
    try:
        num_bytes = fit_volumes(spec, home.config, box, scratch)
    except CannotFit as error:
        told.append(error)
    if told:
        first = told[0]
        others = [part for one in told[1:] for part in ("; and ", *one.words)]
        raise CannotFit(*first.words, *others, setting=first.setting, needs=first.needs) from first
    return num_bytes


def check_memory(home: Home) -> None:
    """CannotFit with what is needed of each tier that has too little: the least that any placement
    takes of the device, and what that one takes of host memory."""
    config, sizes, placement = home.config, home.sizes, home.placement
    run = "the run" if config.strategy == "auto" else f"the run by strategy {config.strategy}"
    tiers = (
        ("device_bytes", "on the device", sizes.device_parts(placement), home.device_limit),
        ("host_bytes", "of host memory", sizes.host_parts(placement), home.host_limit),
    )
    short = {
        name: f"{math.ceil(sum(parts.values()) / MIB)} MiB {where} ({_largest(parts)}), "
        f"{f'{limit // MIB} MiB' if limit >= MIB else f'{limit} bytes'} given"
        for name, where, parts, limit in tiers
        if sum(parts.values()) > limit
    }
    if not short:
        return
    remedies: list[str | Setting] = []
    if "device_bytes" in short:
        batch = Setting("batch_rows", sizes.config.batch_rows)
        remedies += ["; lower ", _microbatch(sizes.config), ", ", batch, " or the length of the "
                     "rows, or raise ", Setting("device_bytes")]  # fmt: skip
    if "host_bytes" in short:
        remedies += ["; and raise " if remedies else "; raise ", Setting("host_bytes")]
        if placement.keep_grads and _may_drop_grads(placement, sizes):
            remedies += [", or choose ", Setting("clip_mode", to="per_layer"), " or none, which "
                         "keep no gradients"]  # fmt: skip
    raise CannotFit(
        f"{run} needs {', and '.join(short.values())}",
        *remedies,
        setting=next(iter(short)),
        needs={name: sum(parts.values()) for name, _, parts, _ in tiers if name in short},
    )


def _may_drop_grads(placement: Placement, sizes: Sizes) -> bool:
    """Whether another clip mode would keep no gradients."""
    config = replace(sizes.config, clip_mode="per_layer")
    return not needs_kept_grads(sizes.spec, config, placement.tiers)


def _microbatch(config: TrainConfig) -> Setting:
    unit = "rows" if config.microbatch_tokens is None else "tokens"
    return Setting(f"microbatch_{unit}", getattr(config, f"microbatch_{unit}"))


def check_wear(wear: Wear, config: TrainConfig) -> None:
    """CannotFit where the job would take more of the drives' rated life than it may."""
    limit = config.max_wear_share
    if limit is None or wear.job_bytes is None:
        return
    if wear.share is None:
        raise CannotFit(
            Setting("max_wear_share"),
            f" is {limit:g}, but the rated life of the drives is not known, so it cannot be kept; "
            "leave it out and bound the bytes with ",
            Setting("max_bytes_written"),
            " instead",
            setting="max_wear_share",
        )
    if wear.share > limit:
        raise CannotFit(
            f"the job would write {wear.job_bytes / 1e12:.3g} TB, {100 * wear.share:.3g} % of the "
            f"{(wear.rated_bytes or 0) / 1e12:.4g} TB that the drives are rated for, "
            f"{100 * limit:.3g} % allowed; give it more tokens a step (",
            Setting("batch_rows"),
            "), fewer steps, more ",
            Setting("host_bytes"),
            ", or raise ",
            Setting("max_wear_share"),
            setting="max_wear_share",
        )


def fit_volumes(spec: ModelSpec, config: TrainConfig, box: Box, scratch: int) -> int:
    """Bytes of the run's store and its scratch, judged as its creation will; else CannotFit."""
    if not box.volumes:
        raise CannotFit(
            "a run needs at least one volume for its state and commits; give ", Setting("volumes")
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
