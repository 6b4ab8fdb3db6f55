"""How many experts of a mixture does no token of a step meet, and what would leaving them out save?

Experts live in their layer's record. In records of their own, those that no token of a step meets
would not have to be moved. Here that is computed for the shapes of real mixtures: a token chooses
its experts without replacement, by popularities that are even, or fall as 1, 1/2, 1/3 … (Zipf: far
more uneven than routers that were trained to balance), or a log-normal between them. Tokens choose
independently of each other. Printed are the mean share of a layer's experts that are unmet and the
share of the layer's bytes that they are; and what a record, and so a slot, would take.

    python -m bench.unmet_experts --json F
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.inputs import finish
from headrace.engine import shape_spec

Floats = npt.NDArray[np.float64]

TOKENS = (16, 64, 256, 1024, 4096, 16384)
STATE_BYTES = 12  # of a parameter in the exact format
MIXTURES = ("mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "qwen3-235b-a22b")


def main() -> int:
    """Compute the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=200_000, help="tokens drawn per popularity")
    parser.add_argument("--json", type=Path, help="also write the result there")
    arguments = parser.parse_args()
    shapes = {name: shape_row(name, arguments.draws) for name in MIXTURES}
    finish({"tokens": list(TOKENS), "draws": arguments.draws, "shapes": shapes}, arguments.json)
    return 0


def shape_row(name: str, draws: int) -> dict[str, Any]:
    """What a layer takes, and what a step leaves of it."""
    spec = shape_spec(name)
    layer, experts = spec.of_kind("layer")[0], spec.experts
    assert experts is not None
    params = sum(p.num_elements for p in layer.params if ".experts." in p.name)
    share = params / layer.num_params
    row: dict[str, Any] = {
        "layer_state_bytes": STATE_BYTES * layer.num_elements,
        "expert_state_bytes": STATE_BYTES * params // experts.count,
        "experts_share_of_layer": round(share, 4),
    }
    for kind, weights in popularities(experts.count).items():
        chances = chosen_chances(weights, experts.per_token, draws)
        unmet = [float(np.mean((1 - chances) ** tokens)) for tokens in TOKENS]
        row[kind] = {
            "unmet": [float(f"{one:.3g}") for one in unmet],
            "bytes_saved": [float(f"{share * one:.3g}") for one in unmet],
        }
    return row


def popularities(count: int) -> dict[str, Floats]:
    """Relative weights by which tokens choose."""
    normal = np.random.default_rng(0).standard_normal(count)
    return {
        "even": np.ones(count),
        "log_normal": np.exp(normal),
        "zipf": 1 / np.arange(1.0, count + 1),
    }


def chosen_chances(weights: Floats, per_token: int, draws: int) -> Floats:
    """The chance that one token chooses each expert: of so many drawn, the share that did.

    The largest of weights in logarithms plus Gumbel noise are a draw without replacement.
    """
    if np.ptp(weights) == 0:
        return np.full(len(weights), per_token / len(weights))
    generator = np.random.default_rng(1)
    hits = np.zeros(len(weights))
    for start in range(0, draws, 10_000):
        size = (min(10_000, draws - start), len(weights))
        keys = np.log(weights) + generator.gumbel(size=size)
        chosen = np.argpartition(-keys, per_token - 1, axis=1)[:, :per_token]
        hits += np.bincount(chosen.ravel(), minlength=len(weights))
    return hits / draws


if __name__ == "__main__":
    sys.exit(main())
