"""Exports of runs on a GPU are read back there, with the same verdict."""

from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset
from runs import Run
from tiny_gguf_families import write_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
ADAPTERS: dict[str, Any] = {"method": "lora", "lora_rank": 4}


@pytest.mark.parametrize("case", ["llama-3", "mixtral", "gemma3_text"])
@pytest.mark.parametrize(
    "settings",
    [
        {"export_dtype": "bfloat16"},
        {"compute_dtype": "bfloat16"},
        {**ADAPTERS, "lora_export": "merged", "export_dtype": "bfloat16"},
        {**ADAPTERS, "frozen_format": "nf4", "lora_targets": ("q_proj", "v_proj")},
    ],
    ids=["full", "half", "merged", "coded"],
)
def test_exports_match_on_a_gpu(tmp_path: Path, case: str, settings: dict[str, Any]) -> None:
    model = write_case(tmp_path / "model", case)
    dataset = write_dataset(tmp_path / "data", [24, 9, 17, 5, 40], vocab=384)
    run = Run(
        tmp_path / "run", model, dataset, device="cuda", device_bytes=2**31, max_steps=2,
        batch_rows=3, microbatch_rows=2, learning_rate=1e-2, export_gguf="q8_0", **settings,
    )  # fmt: skip
    run.go()
    (told,) = (event for event in run.events if event.type == "export")
    for report in told.data["exports"]:
        check = report["check"]
        assert check["matches"] and check["unexplained_diff"] < 1e-3, report["format"]
        assert check["argmax_agreement"] > 0.9
