"""What a job costs besides its steps: commits, checkpoints, the drives' life, money. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.storage import DTYPE_BYTES

from .config import TrainConfig
from .cost import StepCost, play_visits
from .homes import Placement, Way
from .model import ModelSpec
from .rates import Prices, Rates, VolumeRates
from .sizes import Sizes
from .state_record import model_weight_bytes, state_padded_bytes
from .step_cost import StepModel
from .visits import pending_visits


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """How much a job trains, as far as it is known. `row_tokens`: mean tokens of a row, padding
    included; None: as many as the longest has. `trained_share`: of the tokens, those that the loss
    counts. `rows_are_estimate`: the rows have not been tokenized yet."""

    num_steps: int | None = None
    row_tokens: float | None = None
    trained_share: float = 1.0
    rows_are_estimate: bool = False

    def completed(self, sizes: Sizes) -> "JobSize":
        """What was not given, from the rows where the sizes know them."""
        steps, mean = self.num_steps, self.row_tokens
        if mean is None and sizes.mean_step_tokens is not None:
            mean = sizes.mean_step_tokens / sizes.config.batch_rows
        return replace(self, num_steps=steps or sizes.num_steps, row_tokens=mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Something that is written as a whole: bytes, and seconds in which nothing trains."""

    bytes: int
    seconds: float
    link_bytes: dict[str, int] = field(
        default_factory=dict
    )  # over each link; those of none left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Wear:
    """Bytes that a job writes on the volumes, and the part of the drives' rated life that is.

    `share` and `life_steps` (steps that a new drive would last) are None where no rating is known.
    """

    step_bytes: float
    job_bytes: float | None
    rated_bytes: float | None
    share: float | None
    life_steps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """The cost account. `devices_in_memory` GPUs of this size would hold the whole job; they are
    cheaper per token only if together they train more than `break_even_tokens_per_second`."""

    price_per_hour: float
    price_per_million_tokens: float
    job_price: float | None
    devices_in_memory: int
    break_even_tokens_per_second: float


def steps_between_commits(config: TrainConfig, step_seconds: float) -> float:
    """How many steps a commit serves, where it is due by steps or by the clock."""
    minutes = config.commit_every_minutes
    by_clock = math.inf if minutes is None else max(1.0, 60 * minutes / step_seconds)
    return min(float(config.commit_every_steps), by_clock)


def reference_seconds(step: StepCost, config: TrainConfig, job: JobSize) -> float:
    """Of preferences: the forward pass over all rows before the first step, as often as a step's
    in an epoch. The head's forward, which is in a step's backward phase, is small beside it."""
    if config.objective != "dpo" or job.num_steps is None:
        return 0.0
    epochs = 1 if config.max_steps else config.num_epochs
    forward = sum(phase.seconds for phase in step.phases if phase.phase == "forward")
    return forward * math.ceil(job.num_steps / epochs)


def sample_seconds(sizes: Sizes, placement: Placement, rates: Rates, drives: VolumeRates) -> float:
    """Of an evaluation's sample texts: how long the weights take to come by once for each token.

    With all weights on the device that is nothing; what computing takes is small, and not counted.
    """
    config = sizes.config
    if not config.num_samples:
        return 0.0
    come = {"host": 0, "nvme": 0}
    for i, tier in enumerate(placement.tiers):
        if tier != "device" and i not in placement.cached:
            come[tier] += sizes.weight_bytes(i)
    return config.sample_tokens * max(come["nvme"] / drives.read, sum(come.values()) / rates.h2d)


def commit_cost(model: StepModel, placement: Placement, way: Way, drives: VolumeRates) -> Written:
    """One commit: what lives above NVMe is written to it, after what is pending was updated."""
    records = zip(model.spec.records, placement.tiers, strict=True)
    homes = [
        (state_padded_bytes(record, model.config.state_format), tier)
        for record, tier in records
        if record.base is None
    ]
    host = sum(size for size, tier in homes if tier == "host")
    device = sum(size for size, tier in homes if tier == "device")
    seconds = (host + device) / drives.write + device / model.rates.d2h
    moved = {"nvme_write": host + device, "d2h": device}
    visits = pending_visits(model.spec, placement.on_host) if way == "deferred" else []
    if visits:
        extra = play_visits(model, placement, visits, model.visits(placement, visits), drives)
        seconds += extra.seconds
        moved = {link: moved.get(link, 0) + size for link, size in extra.link_bytes.items()}
    return Written(bytes=moved["nvme_write"], seconds=seconds, link_bytes=moved)


def checkpoint_cost(spec: ModelSpec, config: TrainConfig, drives: VolumeRates) -> Written:
    """A checkpoint, or the export: weights read back from the last commit, and written as files.

    The files are taken to lie on a drive as fast as the volumes. With export dtype `auto` they
    have the dtype of the model's own; two bytes a parameter is the usual one. Adapters alone are
    read and written in float32; what is frozen comes from the model's files, in that dtype.
    """
    wanted = "bfloat16" if config.export_dtype == "auto" else config.export_dtype
    adapters = spec.num_trained_params if spec.lora else 0
    size = (spec.num_params - adapters) * DTYPE_BYTES[wanted]
    frozen = spec.num_params - spec.num_trained_params
    held = model_weight_bytes(spec, config.state_format) + frozen * DTYPE_BYTES[wanted]
    if spec.lora and config.lora_export == "adapter":
        size = held = adapters * 4
    seconds = held / drives.read + size / drives.write
    return Written(bytes=size, seconds=seconds)


def wear(
    step: StepCost,
    commit: Written,
    *,
    state_total_bytes: int,
    config: TrainConfig,
    job: JobSize,
    drives: VolumeRates,
) -> Wear:
    """Bytes of the whole job: the import, every step, every commit. Rated bytes as the maker's."""
    every = steps_between_commits(config, step.seconds)
    per_step = step.link_bytes["nvme_write"] + commit.bytes / every
    total = None if job.num_steps is None else state_total_bytes + per_step * job.num_steps
    rated = drives.rated_bytes
    return Wear(
        step_bytes=per_step,
        job_bytes=total,
        rated_bytes=rated,
        share=total / rated if total is not None and rated else None,
        life_steps=rated / per_step if rated and per_step else None,
    )


def money(
    prices: Prices,
    *,
    tokens_per_second: float,
    job_seconds: float | None,
    in_memory_bytes: int,
    device_bytes: int,
) -> Money:
    """Cost per token, and what as many devices as hold the whole job would have to reach.

    One device with offload beats k of them while its rate over its price is above theirs; k
    devices are priced with one host, since they need no memory or drive for the state.
    """
    devices = max(1, math.ceil(in_memory_bytes / max(1, device_bytes)))
    theirs = devices * prices.device + prices.host
    return Money(
        price_per_hour=prices.total,
        price_per_million_tokens=prices.total / 3600 / tokens_per_second * 1e6,
        job_price=None if job_seconds is None else prices.total * job_seconds / 3600,
        devices_in_memory=devices,
        break_even_tokens_per_second=tokens_per_second * theirs / prices.total,
    )


def resident_bytes(device_parts: Mapping[str, int], state_total_bytes: int) -> int:
    """Bytes that the job would take with its whole state on devices: no slots, no streaming."""
    kept = sum(
        size for name, size in device_parts.items() if name not in ("slots", "state", "frozen")
    )
    return kept + state_total_bytes
