"""Where everything lives and in which order it is visited, decided before the run. Pure, no torch.

`make_plan` counts every byte that the run will hold, per tier, and refuses a run that cannot fit;
`step_visits` is the whole order of a step. Nothing in a plan changes a bit of the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from headrace.storage import NoSpace, VolumeRoom, fit_store

from .config import TrainConfig
from .model import ModelSpec
from .placement import choose_placement
from .report import LINKS
from .sizes import MIB, STATE_BYTES_PER_ELEMENT, Placement, Sizes, Tier
from .state_record import state_record

Way = Literal["serial", "speculative"]
Action = Literal["load_table", "forward", "load_head", "head", "backward", "update"]
Reads = Literal["nothing", "weights", "state"]
Phase = Literal["forward", "backward", "optimizer"]


class CannotFit(ValueError):
    """The run needs more of a tier than it was given; the message has the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a machine has, in bytes.

    `volumes` maps each volume's directory to what it has for a new store; a bare number stands
    for a drive of its own with so many bytes free, all of them to be had.
    """

    device: str
    device_bytes: int
    host_bytes: int
    volumes: Mapping[str, VolumeRoom | int] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` made, also after a trip through JSON."""
        volumes = {
            path: VolumeRoom(**room) if isinstance(room, Mapping) else int(room)
            for path, room in values["volumes"].items()
        }
        return cls(**{**values, "volumes": volumes})

    def rooms(self) -> list[VolumeRoom]:
        """What each volume has for a new store."""
        return [
            VolumeRoom(path=path, free_bytes=room) if isinstance(room, int) else room
            for path, room in self.volumes.items()
        ]

    @classmethod
    def detect(cls, *, device: str, volumes: Sequence[str] = ()) -> "Box":
        """Look at this machine: device, host memory within cgroup limits, free volume space."""
        from .box import detect_box

        return detect_box(device=device, volumes=volumes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One layer (or table piece) in one pass: what is read, done and written.

    `record` indexes ModelSpec.records. `committed` reads the last commit, whatever was written
    since: the second try of a speculative update starts from there.
    """

    record: int
    action: Action
    reads: Reads
    writes: bool
    phase: Phase
    committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions for one run. Sizes are bytes; a breakdown by purpose explains each tier."""

    num_slots: int
    slot_bytes: int
    tiers: tuple[Tier, ...]  # home of each record's state
    keep_layers: tuple[int, ...]  # layers whose activations stay, so that nothing is recomputed
    activation_tier: Literal["device", "host"]
    clip_way: Literal["auto", "serial", "speculative"]
    keep_grads: bool  # gradients have a home in host memory until the update
    max_step_tokens: int  # padded tokens of the largest step
    device_bytes: dict[str, int]
    host_bytes: dict[str, int]
    volume_bytes: int
    link_bytes: dict[str, dict[str, int]]  # way -> link -> payload bytes per step

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
        return {**asdict(self), **totals}


def make_plan(spec: ModelSpec, config: TrainConfig, *, longest_row_tokens: int, box: Box) -> Plan:
    """Decide placement and count bytes; raises CannotFit with the numbers when a tier overflows.

    `longest_row_tokens` is the longest row of the training and evaluation data.
    """
    device_limit = config.device_bytes or box.device_bytes
    host_limit = config.host_bytes or box.host_bytes
    sizes = Sizes.of(spec, config, longest_row_tokens)
    placement = choose_placement(sizes, config, device_limit=device_limit, host_limit=host_limit)
    tiers, keep = placement.tiers, placement.keep_layers
    plan = Plan(
        num_slots=placement.num_slots,
        slot_bytes=sizes.slot_bytes,
        tiers=tiers,
        keep_layers=keep,
        activation_tier=placement.activation_tier,
        clip_way=_choose_way(config, placement),
        keep_grads=placement.keep_grads,
        max_step_tokens=sizes.step_tokens,
        device_bytes=sizes.device_parts(placement),
        host_bytes=sizes.host_parts(placement),
        volume_bytes=0,  # known once it is placed, below
        link_bytes={
            way: link_bytes(spec, config, step_visits(spec, tiers, keep, way), tiers)
            for way in ("serial", "speculative")
        },
    )
    _check_memory(plan, device_limit, host_limit, sizes)
    return replace(plan, volume_bytes=_fit_volumes(spec, box))


def fit_microbatch_rows(
    spec: ModelSpec, config: TrainConfig, *, longest_row_tokens: int, box: Box
) -> int:
    """The largest microbatch, up to `config.microbatch_rows`, with which the run fits.

    Microbatches are part of the numerics key, so this is asked once, before the run. Raises
    CannotFit when not even one row fits.
    """
    rows = min(config.microbatch_rows, config.batch_rows)
    while True:
        smaller = replace(config, microbatch_rows=rows)
        try:
            make_plan(spec, smaller, longest_row_tokens=longest_row_tokens, box=box)
            return rows
        except CannotFit:
            if rows == 1:
                raise
            rows = rows // 2


def step_visits(
    spec: ModelSpec, tiers: Sequence[Tier], keep_layers: Sequence[int], way: Way
) -> list[Visit]:
    """The order of one step.

    Forward over embedding and layers, the head, backward over the layers, last first, then the
    embedding. A record on NVMe is updated in its backward visit when the way is speculative;
    every other record is updated after the last backward visit, when the norm is known.
    """
    index = {record.name: i for i, record in enumerate(spec.records)}
    embed = [index[record.name] for record in spec.of_kind("embedding")]
    layers = [index[record.name] for record in spec.of_kind("layer")]
    head = [index[record.name] for record in spec.of_kind("head")]
    norm = index["norm"]
    kept = {layers[i] for i in keep_layers}

    def early(i: int) -> bool:
        return way == "speculative" and tiers[i] == "nvme"

    def gradient(i: int, action: Action, weights_needed: bool) -> Visit:
        reads: Reads = "state" if early(i) else "weights" if weights_needed else "nothing"
        return Visit(record=i, action=action, reads=reads, writes=early(i), phase="backward")

    def forward(i: int, action: Action) -> Visit:
        return Visit(record=i, action=action, reads="weights", writes=False, phase="forward")

    visits = [forward(i, "load_table") for i in embed]
    visits += [forward(i, "forward") for i in layers]
    visits += [forward(i, "load_head") for i in head]
    visits += [gradient(norm, "head", True)]
    visits += [gradient(i, "update", False) for i in head if early(i)]
    visits += [gradient(i, "backward", i not in kept) for i in reversed(layers)]
    visits += [gradient(i, "update", False) for i in embed if early(i)]
    order = [*head, norm, *reversed(layers), *embed]
    visits += [update_visit(i) for i in order if not early(i)]
    return visits


def update_visit(record: int, *, committed: bool = False) -> Visit:
    """A visit that updates a record from its kept gradient."""
    return Visit(
        record=record,
        action="update",
        reads="state",
        writes=True,
        phase="optimizer",
        committed=committed,
    )


def redo_visits(spec: ModelSpec, tiers: Sequence[Tier]) -> list[Visit]:
    """The second try of a speculative step: every early update again, from the last commit."""
    return [update_visit(i, committed=True) for i in range(len(spec.records)) if tiers[i] == "nvme"]


def link_bytes(
    spec: ModelSpec, config: TrainConfig, visits: Sequence[Visit], tiers: Sequence[Tier]
) -> dict[str, int]:
    """Payload bytes of records over each link for these visits (kept gradients not counted)."""
    totals = dict.fromkeys(LINKS, 0)
    for visit in visits:
        if tiers[visit.record] == "device":
            continue
        elements = spec.records[visit.record].num_elements
        read = read_bytes_per_element(config, visit.reads) * elements
        written = STATE_BYTES_PER_ELEMENT * elements if visit.writes else 0
        totals["h2d"] += read
        totals["d2h"] += written
        if tiers[visit.record] == "nvme":
            totals["nvme_read"] += read
            totals["nvme_write"] += written
    return totals


def read_bytes_per_element(config: TrainConfig, reads: Reads) -> int:
    """Bytes read per element: bf16 compute streams `hi` alone, fp32 compute both halves."""
    weights = 2 if config.compute_dtype == "bfloat16" else 4
    return {"nothing": 0, "weights": weights, "state": STATE_BYTES_PER_ELEMENT}[reads]


def _choose_way(
    config: TrainConfig, placement: Placement
) -> Literal["auto", "serial", "speculative"]:
    if not placement.keep_grads:
        return "speculative"
    # Between commits the working state is rewritten in place, so there is nothing to redo from.
    if config.commit_every_steps > 1 or "nvme" not in placement.tiers:
        return "serial"
    return config.clip_way


def _check_memory(plan: Plan, device_limit: int, host_limit: int, sizes: Sizes) -> None:
    mib = 1 / MIB
    if plan.total_device_bytes > device_limit:
        raise CannotFit(
            f"the run needs {plan.total_device_bytes * mib:.0f} MiB on the device "
            f"({_largest(plan.device_bytes)}), {device_limit * mib:.0f} MiB given; "
            f"lower microbatch_rows (now {sizes.config.microbatch_rows}), batch_rows (now "
            f"{sizes.config.batch_rows}) or the length of the rows, or raise device_bytes"
        )
    if plan.total_host_bytes > host_limit:
        raise CannotFit(
            f"the run needs {plan.total_host_bytes * mib:.0f} MiB of host memory "
            f"({_largest(plan.host_bytes)}), {host_limit * mib:.0f} MiB given; raise host_bytes"
            + (", or choose clip_mode per_layer or none, which keep no gradients"
               if plan.keep_grads and "host" not in plan.tiers else "")
        )  # fmt: skip


def _fit_volumes(spec: ModelSpec, box: Box) -> int:
    """Bytes of the run's store, judged as its creation will judge them; CannotFit otherwise."""
    if not box.volumes:
        raise CannotFit(
            "a run needs at least one volume for its state and commits; give --volume PATH"
        )
    try:
        return fit_store(box.rooms(), [state_record(one) for one in spec.records]).total_bytes
    except NoSpace as error:
        raise CannotFit(
            f"no room on the volumes for the run's state (two copies of "
            f"{STATE_BYTES_PER_ELEMENT} bytes per parameter): {error}"
        ) from error


def _largest(parts: Mapping[str, int]) -> str:
    ranked = sorted(parts.items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{name} {size / MIB:.0f} MiB" for name, size in ranked)
