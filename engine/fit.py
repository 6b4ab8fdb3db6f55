"""The largest microbatch with which a run fits its machine. Pure."""

from .config import TrainConfig
from .model import ModelSpec
from .packing import RowLengths, settle_microbatch, smaller_microbatch
from .plan import Box, CannotFit, make_plan


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
    asked once, before the run. Raises CannotFit when not even one row fits.
    """
    config = settle_microbatch(config, longest_row_tokens)
    largest: TrainConfig | None = None  # with which it fits in this way
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
        except CannotFit:
            if largest is None and smaller_microbatch(config, longest_row_tokens) is None:
                raise
        smaller = smaller_microbatch(config, longest_row_tokens)
        if smaller is None:
            assert largest is not None
            return largest
        config = smaller
