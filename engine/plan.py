"""Where everything lives, decided and counted before the run. Pure, no torch.

`make_plan` counts every byte that the run will hold, per tier, and refuses a run that cannot fit.
Nothing in a plan changes a bit of the result; the order of a step is in visits.py.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from .account import JobSize
from .basis import Basis
from .capacity import Box, check_room, check_wear, find_home
from .config import ClipWay, StateFormat, StrategyName, TrainConfig
from .forecast import Forecast, forecast
from .homes import Order, Placement, Tier, Way, early_records
from .model import ModelSpec
from .orders import ordered_visits
from .packing import RowLengths
from .state_record import frozen_bytes, model_state_bytes
from .visits import link_bytes
from .ways import choose_way, planned_way


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
    home = find_home(
        spec, config, longest_row_tokens=longest_row_tokens, box=box, job=job, lengths=lengths,
        weigh=weigh,
    )  # fmt: skip
    volume_bytes = check_room(spec, home, box)
    config, sizes, placement = home.config, home.sizes, home.placement
    clip_way = choose_way(config, placement)
    chosen = {field.name: getattr(placement, field.name) for field in fields(placement)}
    chosen["activation_tiers"] = placement.waits
    predicted = forecast(
        home.model, sizes, placement, clip_way, planned_way(config, placement),
        drives=home.drives, job=home.job, device_bytes=home.device_limit,
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
        volume_bytes=volume_bytes,
        scratch_bytes=sizes.scratch_bytes(placement),
        link_bytes=_bytes_by_way(spec, config, placement, home.load.microbatches),
        forecast=predicted,
        basis=Basis(sizes=sizes, placement=placement, rates=home.rates, drives=home.drives),
    )
    check_wear(plan.forecast.wear, config)
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
