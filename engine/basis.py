"""What a plan's predictions rest on, to predict its single steps later. Pure, no torch."""

from dataclasses import dataclass

from .homes import Placement
from .rates import Rates, VolumeRates
from .sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The model's sizes, the placement, and the rates of the box and of its drives together."""

    sizes: Sizes
    placement: Placement
    rates: Rates
    drives: VolumeRates
