"""The overlay of losses: who is compared with whom, and what the spread is."""

import json
import sys
from pathlib import Path

import pytest

from bench import overlay
from forked import run_forked


def test_the_gap_is_counted_in_spreads_of_the_permuted_runs() -> None:
    losses = {
        "reference": [4.0, 3.0],
        "permuted-0": [4.1, 3.0],
        "permuted-1": [4.0, 3.3],
        "headrace-exact": [4.2, 3.1],
        "nearest-bf16-master": [5.0, 5.0],
    }
    result = overlay.compare(losses)
    assert result["spread"] == pytest.approx(0.1)
    assert result["gap_in_spreads"] == pytest.approx(
        {"headrace-exact": 1.5, "nearest-bf16-master": 15}
    )
    assert result["holds"]
    worse = overlay.compare({**losses, "headrace-exact": [4.4, 3.4]})
    assert not worse["holds"] and "4.00" in overlay.report(worse)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_small_overlay_runs_on_the_cpu_and_tells_the_bad_control(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overlay, "run_apart", run_forked)  # each of several jobs is a process
    rows = tmp_path / "rows.jsonl"
    text = "The channel carries the water to the wheel, and the wheel turns the stone. " * 4
    lines = [{"text": text}, {"messages": [{"role": "user", "content": text}]}]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--rows", rows, "--work-dir", tmp_path / "work", "--json", tmp_path / "out.json"]
    arguments += ["--shape", "tiny", "--layers", 1, "--steps", 10, "--tokens-per-row", 32]
    arguments += ["--batch-rows", 4, "--microbatch-rows", 2, "--state-format", "exact"]
    arguments += ["--jobs", jobs]
    monkeypatch.setattr(sys, "argv", ["overlay", *map(str, arguments)])
    overlay.main()
    capsys.readouterr()
    result = json.loads((tmp_path / "out.json").read_text())
    names = ["reference", "permuted-0", "permuted-1", "autocast", "nearest-bf16-master"]
    assert list(result["losses"]) == [*names, "headrace-exact"]
    assert all(len(losses) == 10 for losses in result["losses"].values())
    gap = result["gap_in_spreads"]
    assert gap["nearest-bf16-master"] > 4 * gap["headrace-exact"]
