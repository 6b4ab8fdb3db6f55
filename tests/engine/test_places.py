"""Positions are made once for microbatches that are alike, and only for those."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.engine.layer import LayerModule
from headrace.engine.source import read_model_spec
from tiny import make_tiny_llama

ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
}  # fmt: skip
TOKENS = 40  # beyond where "dynamic" begins to stretch


def module_of(folder: Path, rope: str) -> LayerModule:
    model = make_tiny_llama(
        folder, tied=True, seed=3, max_position_embeddings=16, rope_scaling=ROPES[rope] or None
    )
    return LayerModule(read_model_spec(str(model)), device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_what_is_equal_by_what_positions_depend_on_is_equal(
    tmp_path: Path, rope: str, packed: bool
) -> None:
    module = module_of(tmp_path / "model", rope)
    rows = [torch.tensor(lengths) for lengths in ([40, 0], [30, 10], [40, 0], [25, 15])]
    keys = [module.places.depend_on(TOKENS, row, packed=packed) for row in rows]
    made = [module.positions(TOKENS, row, packed=packed) for row in rows]
    assert keys[0] == keys[2]
    for key, positions in zip(keys, made, strict=True):
        for other, others in zip(keys, made, strict=True):
            if key == other:
                for kind, (cos, sin, _) in positions.items():
                    assert torch.equal(cos, others[kind][0]) and torch.equal(sin, others[kind][1])


@pytest.mark.parametrize(
    ("rope", "packed", "shared"),
    [("default", False, True), ("llama3", False, True), ("dynamic", False, False),
     ("default", True, False)],
)  # fmt: skip
def test_rows_of_other_lengths_share_positions_where_these_do_not_depend_on_them(
    tmp_path: Path, rope: str, packed: bool, shared: bool
) -> None:
    places = module_of(tmp_path / "model", rope).places
    first, other = (
        places.depend_on(TOKENS, torch.tensor(lengths), packed=packed)
        for lengths in ([40, 0], [30, 10])
    )
    assert (first == other) is shared
    assert first != places.depend_on(TOKENS + 1, torch.tensor([40, 0]), packed=packed)
