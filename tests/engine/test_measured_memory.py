"""What whole steps on a GPU were measured to take is what the plan counts for them."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_cases import CASES
from headrace.engine import TrainConfig, shape_spec
from headrace.engine.homes import Placement
from headrace.engine.sizes import Sizes

MEASURED = Path(__file__).parents[1] / "bench" / "results" / "2026-11-30-gpu-step.jsonl"
GIB = 2**30


def measured() -> Iterator[Any]:
    """Rows of the product whose layers were compiled, placed as the plan places them today."""
    for line in MEASURED.read_text().splitlines():
        row = json.loads(line)
        if "activation_tiers" in row["result"].get("placement", {}):
            yield pytest.param(row, id=f"{row['case']}-{row['who']}")


@pytest.mark.parametrize("row", list(measured()))
def test_what_was_reserved_and_used_is_what_is_planned(row: dict[str, Any]) -> None:
    case, result = CASES[row["case"]], row["result"]
    known = {field.name for field in fields(Placement)}
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in result["placement"].items()
        if name in known
    }
    placement = Placement(**chosen)
    config = TrainConfig(
        model="m",
        dataset="d",
        device="cuda",
        compute_dtype="bfloat16",
        compile="dynamic",
        packing="off",
        batch_rows=case.rows,
        microbatch_rows=result["microbatch_rows"],
        loss_chunk_tokens=case.settings.get("loss_chunk_tokens", 4096),
    )
    sizes = Sizes.of(shape_spec(case.shape, case.layers), config, case.tokens_per_row)
    parts = sizes.device_parts(placement)
    total = sum(parts.values())
    assert 0.95 <= result["peak_reserved_gib"] * GIB / (total - parts["runtime"]) <= 1.0
    assert 0.95 <= result["device_used_gib"] * GIB / total <= 1.0
