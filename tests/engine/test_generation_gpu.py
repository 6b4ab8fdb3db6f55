"""On a GPU: texts, losses of rows and the rehearsal are those of the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datasets import write_dataset
from headrace.engine.row_losses import LEDGER
from runs import Run, assert_same_state
from tiny_families import write_family

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
PROMPTS = ("Which way does the water run, and how far, and who has seen it?", "Why?")
SETTINGS: dict[str, Any] = {
    "sample_prompts": PROMPTS, "sample_tokens": 12, "max_steps": 3, "batch_rows": 3,
    "learning_rate": 1e-9, "device_bytes": 2**31, "rehearsal": "on",
}  # fmt: skip


def texts(run: Run) -> list[str]:
    told = next(event for event in run.events if event.type == "samples")
    return [one["completion"] for one in told.data["samples"]]


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen2-window", "phi3-window", "mixtral"])
def test_texts_and_losses_of_rows_are_those_of_the_cpu(tmp_path: Path, case: str) -> None:
    model = write_family(tmp_path / "model", case)
    data = write_dataset(tmp_path / "data", [9, 17, 5, 30, 12], vocab=384)
    cpu, gpu = (
        Run(tmp_path / device, model, data, device=device, **SETTINGS) for device in ("cpu", "cuda")
    )
    for run in (cpu, gpu):
        run.go()
    assert texts(gpu) == texts(cpu)
    ledgers = [np.fromfile(run.folder / "run" / LEDGER, np.float32) for run in (cpu, gpu)]
    assert ledgers[1] == pytest.approx(ledgers[0], abs=1e-3)


@pytest.mark.parametrize("tier", ["device", "host", "nvme"])
def test_texts_and_a_rehearsal_change_no_bit_in_half_precision(tmp_path: Path, tier: str) -> None:
    model = write_family(tmp_path / "model", "llama")
    data = write_dataset(tmp_path / "data", [9, 17, 5, 30, 12], vocab=384)
    half = {**SETTINGS, "device": "cuda", "compute_dtype": "bfloat16", "state_tier": tier}
    told = Run(tmp_path / "told", model, data, **half)
    plain = Run(
        tmp_path / "plain", model, data,
        **{**half, "sample_prompts": (), "rehearsal": "off", "row_losses": False},
    )  # fmt: skip
    for run in (told, plain):
        run.go()
    assert_same_state(told.state(), plain.state())
    assert len(texts(told)) == 2
