"""A traced step is accounted for to the last millisecond, whatever ran and whatever did not."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import profile_step
from bench.trace_summary import above_limit, kind_of, summarise


def event(category: str, name: str, start: float, end: float, lane: int) -> dict[str, Any]:
    """Times in milliseconds."""
    arguments = {} if category == "user_annotation" else {"stream": lane}
    times = {"ts": start * 1000, "dur": (end - start) * 1000}
    return {"cat": category, "name": name, "tid": lane, "args": arguments, **times}


TRACE = [
    event("user_annotation", "step", 10, 110, 1),
    event("gpu_user_annotation", "visit:forward forward", 12, 60, 7),
    event("gpu_user_annotation", "visit:backward backward", 60, 110, 7),
    event("kernel", "nvjet_hsh_128x256", 12, 42, 7),
    event("kernel", "flash_fwd_kernel", 42, 52, 7),
    event("kernel", "nvjet_hsh_128x256", 60, 90, 7),
    event("kernel", "_adamw_kernel", 90, 95, 7),
    event("kernel", "triton_poi_fused_mul_silu", 95, 100, 7),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 50, 56, 13),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 100, 120, 14),
    event("kernel", "nvjet_hsh_128x256", 115, 130, 7),
]


def test_every_millisecond_of_a_step_is_in_one_line() -> None:
    summary = summarise(TRACE)
    assert summary["by_kind_ms"] == {
        "gemm": 60,
        "attention": 10,
        "optimizer": 5,
        "compiled elementwise": 5,
    }
    assert summary["step_ms"] == 100 and summary["busy_ms"] == 80 and summary["idle_ms"] == 20
    assert summary["idle_while_copying_ms"] == 4 + 10  # of 52 to 60, and of 100 to 110
    assert summary["links_ms"] == {"copy up": 6, "copy down": 10}
    assert summary["by_phase_ms"]["forward forward"] == {"gemm": 30, "attention": 10}
    assert summary["idle_by_place_ms"] == {
        "backward backward -> end": 10,
        "forward forward -> backward backward": 8,
        "begin -> forward forward": 2,
    }
    above = above_limit(summary, limit_ms=50)
    assert above == {
        "matrix products above the limit": 10,
        "attention": 10,
        "optimizer": 5,
        "compiled elementwise": 5,
        "idle while copying": 14,
        "idle": 6,
        "counted twice": 0,
    }
    assert sum(above.values()) == summary["step_ms"] - 50


def test_a_trace_without_the_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no span named 'step'"):
        summarise(TRACE[1:])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", "gemm"),
        ("_round_kernel", "rounding"),
        ("Memcpy DtoD (Device -> Device)", "copy on the device"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
        ("aten::addmm", "gemm"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_a_small_step_is_profiled_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, trace = tmp_path / "out.json", tmp_path / "trace.json.gz"
    arguments = ["--case", "smoke", "--volume", tmp_path, "--json", out, "--trace", trace]
    monkeypatch.setattr(sys, "argv", ["profile_step", *map(str, arguments)])
    assert profile_step.main() == 0
    assert "above the limit:" in capsys.readouterr().out
    result = json.loads(out.read_text())
    phases = result["summary"]["by_phase_ms"]
    assert {"forward forward", "backward backward", "backward head"} <= set(phases)
    total = sum(result["above_limit_ms"].values()) + result["limit_ms"]
    assert total == pytest.approx(result["summary"]["step_ms"])
    assert trace.stat().st_size > 0
