"""Positions are made once for microbatches that are alike, and only for those."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.engine.data import Microbatch
from headrace.engine.forward import positions_of_each
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
    keys = [module.places.key(TOKENS, row, packed=packed) for row in rows]
    made = [module.positions(TOKENS, row, packed=packed) for row in rows]
    assert keys[0] == keys[2]
    for key, positions in zip(keys, made, strict=True):
        for other, others in zip(keys, made, strict=True):
            if key == other:
                for kind, (cos, sin, documents) in positions.items():
                    assert torch.equal(cos, others[kind][0]) and torch.equal(sin, others[kind][1])
                    assert (documents is not None) is packed
                    other_documents = others[kind][2]
                    if documents is not None and other_documents is not None:
                        assert torch.equal(documents.bounds, other_documents.bounds)


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
        places.key(TOKENS, torch.tensor(lengths), packed=packed) for lengths in ([40, 0], [30, 10])
    )
    assert (first == other) is shared
    assert first != places.key(TOKENS + 1, torch.tensor([40, 0]), packed=packed)


def test_microbatches_that_are_alike_share_positions_and_each_has_its_own(tmp_path: Path) -> None:
    module = module_of(tmp_path / "model", "default")

    def microbatch(tokens: int, *lengths: int, packed: bool) -> Microbatch:
        ids = torch.zeros((1 if packed else len(lengths), tokens), dtype=torch.int64)
        return Microbatch(
            ids=ids, labels=ids, row_indices=(), num_tokens=sum(lengths), num_trained=0,
            lengths=torch.tensor(lengths), packed=packed,
        )  # fmt: skip

    batches = [
        microbatch(TOKENS, 40, 9, packed=False),
        microbatch(12, 12, 3, packed=False),
        microbatch(TOKENS, 31, 40, packed=False),
        microbatch(TOKENS, 31, 9, packed=True),
        microbatch(TOKENS, 30, 10, packed=True),
    ]
    each = positions_of_each(module, batches)
    assert each[0] is each[2]
    assert len({id(positions) for positions in each}) == 4
    for batch, positions in zip(batches, each, strict=True):
        own = module.positions(batch.ids.shape[1], batch.lengths, packed=batch.packed)
        for kind, (cos, _, _) in own.items():
            assert torch.equal(positions[kind][0], cos)
