"""What whole steps on a GPU were measured to take is what the plan counts for them."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_cases import CASES
from headrace.engine import TrainConfig, method_spec, shape_spec
from headrace.engine.homes import Placement
from headrace.engine.sizes import Sizes

RESULTS = Path(__file__).parents[1] / "bench" / "results"
MEASURED = ("2026-12-01-gpu-step.jsonl",)  # older rows: before plans were reserved in one block
LEAST, MOST = 0.95, 1.0  # of what is planned
GIVEN_OUT = 0.9  # at least, of what is planned for steps
GIB = 2**30
METHOD = ("method", "frozen_format", "state_format")  # settings that change what is held


def measured() -> Iterator[Any]:
    """Rows of the product whose layers were compiled, placed as the plan places them today."""
    for name in MEASURED:
        for line in (RESULTS / name).read_text().splitlines():
            row = json.loads(line)
            if "activation_tiers" in row.get("result", {}).get("placement", {}):
                yield pytest.param(row, id=f"{row['case']}-{row['who']}-{row['date']}")


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
        loss_chunk_tokens=row["settings"]["settings"].get("loss_chunk_tokens", 4096),
        **{name: case.settings[name] for name in METHOD if name in case.settings},
    )
    spec = method_spec(shape_spec(case.shape, case.layers), config)
    sizes = Sizes.of(spec, config, case.tokens_per_row)
    parts = sizes.device_parts(placement)
    total = sum(parts.values())
    assert LEAST <= result["peak_reserved_gib"] * GIB / (total - parts["runtime"]) <= MOST
    assert LEAST <= result["device_used_gib"] * GIB / total <= MOST
    for_steps = total - parts["runtime"] - parts["allocator"]
    assert GIVEN_OUT <= result["peak_gib"] * GIB / for_steps <= MOST
