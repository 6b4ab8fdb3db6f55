"""`headrace bench strategies` holds each to its formula and to the others' bits, and says so."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import run
from headrace.service.cli.bench_strategies import LINKS, holds
from headrace.service.cli.output import Exit

SMALL = ("--shape", "tiny", "--layers", "2", "--steps", "1", "--tokens-per-row", "32")
THREE = ("resident", "zero_infinity", "memascend")


def table(tmp_path: Path, *more: str) -> tuple[int, str]:
    only = [word for name in THREE for word in ("--only", name)]
    return run("bench", "strategies", *SMALL, *only, "--volume", tmp_path, *more), ""


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return {
        "strategy": "ratel", "tiers": {"nvme": 5}, "way": "serial", "step_seconds": 1.0,
        "planned_seconds": 1.0, "commit_seconds": 0.1, "worst_share": 0.0, "digest": "ab" * 32,
        "link_bytes": dict.fromkeys(LINKS, 100.0), "formula_bytes": dict.fromkeys(LINKS, 100.0),
        "device_bytes": 1, "host_bytes": 1, "device_peak_bytes": None, "rss_above_start_bytes": 1,
        "staging_bytes": 1, "common_staging_bytes": 2,
    }  # fmt: skip


def test_each_moves_its_formula_and_all_end_with_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = table(tmp_path, "--json")
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert code == Exit.OK and found["holds"]
    assert [one["strategy"] for one in found["strategies"]] == list(THREE)
    assert len({one["digest"] for one in found["strategies"]}) == 1
    assert {name: set(one["tiers"]) for name, one in zip(THREE, found["strategies"], strict=True)} \
        == {"resident": {"device"}, "zero_infinity": {"nvme"}, "memascend": {"nvme"}}  # fmt: skip
    for one in found["strategies"]:
        assert one["worst_share"] <= 0.02
        assert one["step_seconds"] > 0 and one["rss_above_start_bytes"] > 0
        assert one["rule"] and one["system"]
    resident, horizontal, late = (one["link_bytes"] for one in found["strategies"])
    assert sum(resident.values()) == 0
    # Two microbatches one after the other read the weights twice as often.
    weights = 4 * found["num_params"]
    assert horizontal["nvme_read"] - late["nvme_read"] == pytest.approx(2 * weights, rel=0.1)
    assert late["nvme_write"] == pytest.approx(12 * found["num_params"], rel=0.02)
    assert all(name in said.err for name in THREE)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("bench")]


def test_the_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = table(tmp_path, "--text", "--only", "memascend")
    said = capsys.readouterr().out
    assert code == Exit.OK and "all held" in said and "memascend" in said
    assert "staging where every buffer is as large as the largest" in said


@pytest.mark.parametrize(
    "fault", [{"worst_share": 0.03}, {"digest": "cd" * 32}], ids=["bytes", "bits"]
)
def test_one_that_is_off_its_formula_or_has_other_bits_fails_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    row: dict[str, Any],
    fault: dict[str, Any],
) -> None:
    def rows(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield from [row, {"strategy": "megatrain", "refused": "too little"}, {**row, **fault}]

    monkeypatch.setattr("headrace.engine.strategy_bench.bench_strategies", rows)
    assert run("bench", "strategies", *SMALL, "--volume", tmp_path, "--json") == Exit.FAILED
    found = json.loads(capsys.readouterr().out)
    assert not found["holds"] and found["strategies"][1]["refused"] == "too little"
    assert holds([row, {"strategy": "megatrain", "refused": "too little"}])
    assert not holds([row, {**row, **fault}])


def test_an_unknown_strategy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("bench", "strategies", *SMALL, "--only", "zero", "--volume", tmp_path)
    assert run(*command) == Exit.USAGE
    assert "strategy is 'zero'; wanted one of" in capsys.readouterr().err
