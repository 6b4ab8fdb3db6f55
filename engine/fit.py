"""The largest microbatch with which a run fits its machine. Pure."""

from .capacity import Box, CannotFit
from .config import TrainConfig
from .model import ModelSpec
from .packing import Arrangement, Extent, RowLengths, settle_microbatch, smaller_microbatch
from .plan import make_plan


def least_microbatches(config: TrainConfig, longest_row_tokens: int) -> list[TrainConfig]:
    """The config with each microbatch that takes least: where none of them fits, none does.

    That is the smallest, and any larger one with which a step has fewer tokens, since small
    microbatches of packed rows can leave more room empty.
    """
    found: list[tuple[Extent, TrainConfig]] = []
    config = settle_microbatch(config, longest_row_tokens)
    smaller: TrainConfig | None = config
    while smaller is not None:
        found.append((Arrangement.of(smaller).limit(longest_row_tokens), smaller))
        smaller = smaller_microbatch(smaller, longest_row_tokens)
    least: list[tuple[Extent, TrainConfig]] = []
    for extent, one in reversed(found):
        if all(extent.step_tokens < other.step_tokens for other, _ in least):
            least.append((extent, one))
    return [one for _, one in least]


def fit_microbatch(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    longest_row_tokens: int,
    box: Box,
    lengths: RowLengths | None = None,
) -> TrainConfig:
    """The config with the largest microbatch, up to its own, with which the run fits.

    A smaller one is taken before layer inputs wait on NVMe, unless the run asks for that: they
    would cross the drives in every step. Microbatches are part of the numerics key, so this is
    asked once, before the run. Raises CannotFit when not even one row fits, with the numbers of the
    microbatch that is short of least.
    """
    config = settle_microbatch(config, longest_row_tokens)
    largest: TrainConfig | None = None  # with which it fits in this way
    refusals: list[CannotFit] = []
    while True:
        try:
            plan = make_plan(
                spec,
                config,
                longest_row_tokens=longest_row_tokens,
                box=box,
                lengths=lengths,
                weigh=False,
            )
            if "nvme" not in plan.activation_tiers or config.activation_tier == "nvme":
                return config
            largest = largest or config
        except CannotFit as error:
            refusals.append(error)
        smaller = smaller_microbatch(config, longest_row_tokens)
        if smaller is None:
            break
        config = smaller
    if largest is None:
        raise min(reversed(refusals), key=lambda one: (len(one.needs), [*one.needs.values()]))
    return largest
