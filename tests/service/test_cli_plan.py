"""`headrace plan`: the reference tables come out of it, and a refusal says what would fit."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import SHAPES
from headrace.service.__main__ import main
from headrace.service.cli.output import Exit, human_count
from tiny import make_tiny_llama

Run = Callable[..., tuple[int, Any]]

EXACT, Q8, SR_Q8 = "exact", "q8", "sr_q8"
WEIGHTS = ", weights in memory"
FP32, LORA, QLORA = "fp32 and a bf16 copy", "adapters on bf16", "adapters on 4 bits"
DRIVES = {  # a drive's read and write, GB/s, and how many
    "1x6/4": (6, 4, 1), "1x14/10": (14, 10, 1), "4x6/4": (6, 4, 4), "4x14/10": (14, 10, 4),
    "27/11": (27, 11, 1), "48/26": (48, 26, 1),
}  # fmt: skip
# Thousands of tokens a step that hide each drive, and the link to the device.
TOKENS_NEEDED: dict[str, tuple[tuple[float, ...], float]] = {
    FP32: ((463, 191, 116, 48, 140, 65), 24),
    EXACT: ((400, 165, 100, 41, 121, 57), 21),
    EXACT + WEIGHTS: ((313, 129, 78, 32, 96, 45), 21),
    "sr_bf16": ((213, 88, 53, 22, 63, 30), 12),
    Q8: ((184, 76, 46, 19, 55, 26), 12),
    Q8 + WEIGHTS: ((97, 40, 24, 10, 30, 14), 12),
    SR_Q8: ((153, 63, 38, 16, 45, 21), 12),
    LORA: ((67, 29, 17, 7, 15, 8), 12),
    QLORA: ((18, 8, 5, 2, 4, 2), 3.3),
}
# Bytes a parameter: read, written, up, down; thousands of tokens that hide four drives of 6/4.
BYTES: dict[str, tuple[float, float, float, float, float]] = {
    f"{FP32}, updated on the host": (16, 14, 4, 2, 116),
    f"{FP32}, updated on the host{WEIGHTS}": (12, 12, 4, 2, 94),
    FP32: (16, 14, 16, 14, 116),
    EXACT: (14, 12, 14, 12, 100),
    EXACT + WEIGHTS: (10, 10, 14, 12, 78),
    "sr_fp32": (12, 10, 12, 10, 84),
    "sr_bf16": (8, 6, 8, 6, 53),
    Q8: (7.1, 5.1, 7.1, 5.1, 46),
    Q8 + WEIGHTS: (3.1, 3.1, 7.1, 5.1, 24),
    SR_Q8: (6.1, 4.1, 6.1, 4.1, 38),
    SR_Q8 + WEIGHTS: (2.1, 2.1, 6.1, 4.1, 16),
    "no optimizer state": (4, 2, 4, 2, 22),
    "projected state, rank d/4": (6, 4, 6, 4, 38),
}
# Drive seconds of a step by billions of parameters, and those of AdamW on the host.
DRIVE_SECONDS: dict[float, dict[tuple[str, str], float]] = {
    7: {(FP32, "1x14/10"): 18, (FP32, "4x6/4"): 11, (EXACT, "1x14/10"): 15, (EXACT, "4x6/4"): 9.3,
        (EXACT, "4x14/10"): 3.9, (Q8, "1x14/10"): 7.1, (Q8, "4x6/4"): 4.3,
        (Q8 + WEIGHTS, "4x6/4"): 2.3},
    14: {(FP32, "1x14/10"): 36, (FP32, "4x6/4"): 22, (EXACT, "1x14/10"): 31, (EXACT, "4x6/4"): 19,
         (EXACT, "4x14/10"): 7.7, (Q8, "1x14/10"): 14, (Q8, "4x6/4"): 8.6,
         (Q8 + WEIGHTS, "4x6/4"): 4.5},
    32: {(FP32, "1x14/10"): 81, (FP32, "4x6/4"): 49, (EXACT, "1x14/10"): 70,
         (EXACT, "4x14/10"): 18, (Q8, "4x6/4"): 20, (Q8 + WEIGHTS, "4x6/4"): 10},
    70: {(FP32, "1x14/10"): 178, (FP32, "4x6/4"): 108, (EXACT, "1x14/10"): 154,
         (EXACT, "4x6/4"): 93, (EXACT, "4x14/10"): 38, (Q8, "1x14/10"): 71, (Q8, "4x6/4"): 43,
         (Q8 + WEIGHTS, "4x6/4"): 23},
    120: {(FP32, "1x14/10"): 305, (EXACT, "4x6/4"): 160, (EXACT, "4x14/10"): 66,
          (Q8, "1x14/10"): 122, (Q8 + WEIGHTS, "4x6/4"): 39},
}  # fmt: skip
COMPUTE_SECONDS: dict[float, float] = {7: 6.1, 14: 12, 32: 28, 70: 61, 120: 105}  # at 64 k tokens
HOST_UPDATE_SECONDS: dict[float, float] = {7: 1.0, 14: 2.0, 32: 4.5, 70: 9.8, 120: 17}
# Steps of a 70 B model that a drive lasts, by petabytes that it is rated for.
LIFE_STEPS: dict[str, dict[float, float]] = {
    "zero_infinity": {1.2: 950, 2.4: 1900, 4.8: 3800, 14: 11000, 35: 28000},
    FP32: {1.2: 1200, 2.4: 2400, 4.8: 4900, 14: 14000, 35: 36000},
    EXACT: {1.2: 1400, 2.4: 2900, 4.8: 5700, 14: 17000, 35: 42000},
    EXACT + WEIGHTS: {1.2: 1700, 2.4: 3400, 4.8: 6900, 14: 20000, 35: 50000},
    "sr_bf16": {1.2: 2900, 2.4: 5700, 4.8: 11000, 14: 33000, 35: 83000},
    Q8: {1.2: 3400, 2.4: 6700, 4.8: 13000, 14: 39000, 35: 98000},
    Q8 + WEIGHTS: {1.2: 5500, 2.4: 11000, 4.8: 22000, 14: 65000, 35: 161000},
    SR_Q8: {1.2: 4200, 2.4: 8400, 4.8: 17000, 14: 49000, 35: 122000},
    SR_Q8 + WEIGHTS: {1.2: 8200, 2.4: 16000, 4.8: 33000, 14: 95000, 35: 238000},
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    def command(*arguments: object) -> tuple[int, Any]:
        """Exit code and JSON of `headrace plan`, on standard output or error."""
        code = 0
        try:
            main(["plan", *map(str, arguments), "--data-dir", str(tmp_path / "data"), "--json"])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, json.loads(said.out if said.out else said.err)

    return command


def box_file(
    folder: Path, drives: str = "4x6/4", *, rated_petabytes: float = 1.2, host: float = 256e9
) -> Path:
    """A box of the reference: 600 TFLOPS, 50 GB/s each way, 200 GB/s of memory."""
    read, write, count = DRIVES[drives]
    sections = {
        "memory": {"device_bytes": 900e9, "host_bytes": host},
        "rates": {"h2d": 50e9, "d2h": 50e9, "both": 50e9, "host_memory": 200e9,
                  "device_memory": 1e18, "flops": 600e12},
        "drive": {"count": count, "bytes": 20e12, "read": read * 1e9, "write": write * 1e9,
                  "rated_bytes": rated_petabytes * 1e15 / count},
    }  # fmt: skip
    sourced = {
        section: {name: {"value": value, "source": "the reference"} for name, value in one.items()}
        for section, one in sections.items()
    }
    path = folder / f"box-{drives.replace('/', '-')}-{rated_petabytes}.json"
    path.write_text(json.dumps({"name": drives, "device": "cuda", **sourced}))
    return path


def schemes(
    run: Run, box: Path, billions: float = 70, *, shape: str | None = None
) -> dict[str, dict[str, Any]]:
    model = ("--params", billions * 1e9) if shape is None else ("--shape", shape)
    asked = ("--schemes", *model, "--rows", 16, "--tokens", 4096)
    code, found = run("--box", box, *asked)
    assert code == Exit.OK
    return {one["scheme"]: one for one in found["schemes"]}


def about(value: float) -> Any:
    """The figure within half a unit of its second digit, as the tables round it."""
    return pytest.approx(value, rel=0, abs=0.55 * 10 ** (math.floor(math.log10(value)) - 1))


def test_the_table_of_tokens_that_hide_the_drives(run: Run, tmp_path: Path) -> None:
    for place, drives in enumerate(DRIVES):
        found = schemes(run, box_file(tmp_path, drives))
        for name, (needed, wall) in TOKENS_NEEDED.items():
            found_tokens = found[name]["drive_tokens"] / 1e3
            # Whole thousands, also below ten.
            whole = pytest.approx(needed[place], rel=0, abs=0.55)
            assert found_tokens in (whole, about(needed[place])), (name, drives)
            assert found[name]["link_tokens"] / 1e3 == about(wall), name


def test_the_table_of_bytes_a_parameter(run: Run, tmp_path: Path) -> None:
    found = schemes(run, box_file(tmp_path))
    for name, (read, write, up, down, tokens) in BYTES.items():
        one = found[name]
        assert (one["drive_read"], one["drive_write"]) == pytest.approx((read, write)), name
        assert (one["up"], one["down"]) == pytest.approx((up, down)), name
        assert one["drive_tokens"] / 1e3 == about(tokens), name


@pytest.mark.parametrize("billions", sorted(DRIVE_SECONDS))
def test_the_table_of_drive_seconds(run: Run, tmp_path: Path, billions: float) -> None:
    for drives in ("1x14/10", "4x6/4", "4x14/10"):
        found = schemes(run, box_file(tmp_path, drives), billions)
        for (name, where), seconds in DRIVE_SECONDS[billions].items():
            if where == drives:
                assert found[name]["drive_seconds"] == about(seconds), (name, drives)
        assert found[EXACT]["compute_seconds"] == about(COMPUTE_SECONDS[billions])
        assert found[EXACT]["host_update_seconds"] == about(HOST_UPDATE_SECONDS[billions])


@pytest.mark.parametrize("petabytes", [1.2, 2.4, 4.8, 14, 35])
def test_the_table_of_a_drives_life(run: Run, tmp_path: Path, petabytes: float) -> None:
    found = schemes(run, box_file(tmp_path, rated_petabytes=petabytes))
    for name, lives in LIFE_STEPS.items():
        assert found[name]["life_steps"] == about(lives[petabytes]), name
    assert found[LORA]["life_steps"] is None


def test_a_plan_of_the_exact_format_stands_where_its_row_of_the_table_does(
    run: Run, tmp_path: Path
) -> None:
    """The plan counts every record and visit; the table only bytes a parameter."""
    asked = ("--shape", "llama3-70b", "--rows", 512, "--microbatch-rows", 4, "--tokens", 128)
    settings = [f"--set={text}" for text in ("clip_mode=per_layer", "state_tier=nvme",
                                             "recompute=all", "num_slots=3")]  # fmt: skip
    code, found = run("--box", box_file(tmp_path), *asked, *settings, "--steps", 100)
    assert code == Exit.OK
    forecast = found["plan"]["forecast"]
    params = found["model"]["num_params"]
    moved = forecast["step"]["link_bytes"]
    assert moved["nvme_read"] / params == pytest.approx(14, rel=0.02)
    assert moved["nvme_write"] / params == pytest.approx(12, rel=0.02)
    assert forecast["step_tokens_needed"]["drive"] == pytest.approx(100e3, rel=0.06)
    forward, backward = (phase["busy_seconds"] for phase in forecast["step"]["phases"])
    assert forward["drive"] + backward["drive"] == pytest.approx(93, rel=0.02)
    # Forward hides its drive and backward does not, so the step is more than the larger of both.
    assert forecast["step"]["seconds"] == pytest.approx(
        forward["compute"] + backward["drive"], rel=0.02
    )
    assert forecast["wear"]["life_steps"] == pytest.approx(1400, rel=0.03)
    assert forecast["origin"] == "described"
    first = found["plan"]["changes"][0]
    assert first["text"].startswith("2 x ") and first["gain"] > 0.2


def test_the_table_for_people_says_what_it_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--shape", "llama3-8b", "--box", "h200-pcie", "--steps", "100",
              "--device-price", "3"])  # fmt: skip
    said = capsys.readouterr().out
    assert not ended.value.code
    for words in ("placement with the shortest predicted step",
                  "planned from a description, not measured", "waits for", "of the drives' rated",
                  "per million tokens", "What would help", "forward", "holds from"):  # fmt: skip
        assert words in said, words


def test_a_mixture_needs_more_tokens_by_its_total_over_what_a_token_passes(
    run: Run, tmp_path: Path
) -> None:
    """All of it moves; a token is computed with some experts. Published: 30.5 and 3.3 B."""
    mixture = schemes(run, box_file(tmp_path), shape="qwen3-30b-a3b")
    dense = schemes(run, box_file(tmp_path))
    share = 3.35e9 / 30.53e9
    for name, one in mixture.items():
        for key in ("drive_tokens", "link_tokens"):
            assert one[key] * share == about(dense[name][key]), (name, key)
    asked = ("--shape", "qwen3-30b-a3b", "--box", "h200-pcie", "--rows", 16, "--tokens", 1024)
    code, found = run(*asked)
    assert code == Exit.OK
    assert found["model"]["num_params"] == pytest.approx(30.5e9, rel=0.01)
    assert found["model"]["num_passed_params"] == pytest.approx(3.35e9, rel=0.01)


def test_a_run_that_cannot_fit_is_refused_with_what_would(run: Run) -> None:
    asked = ("--shape", "llama3-70b", "--box", "rtx-4090", "--rows", 4, "--tokens", 512)
    code, found = run(*asked)
    assert code == Exit.REFUSED
    said = found["error"]["message"]
    assert "MiB on the device" in said and "what would fit: --device-bytes" in said
    assert "--rows (now 4)" in said and "batch_rows" not in said


def test_a_refusal_says_options_as_they_are_typed_and_sizes_in_one_unit(
    run: Run, tmp_path: Path
) -> None:
    asked = ("--shape", "llama3-8b", "--rows", 16, "--tokens", 1024, "--device", "cpu")
    budgets = ("--host-bytes", "1GB", "--device-bytes", "1GB")
    code, found = run(*asked, *budgets, "--volume", f"{tmp_path}:1GB")
    said = found["error"]["message"]
    assert code == Exit.REFUSED and "choose --set clip_mode=per_layer or none" in said
    assert re.search(r"\d+ MiB are needed .* of a limit of 953 MiB", said)
    assert not re.search(r"\d{7}", said), "a size of so many digits is one in bytes"
    assert not re.search(r"--set \w+ [^(]", said), "a value stands behind an equals sign"


def test_a_strategy_is_planned_by_its_rule(run: Run) -> None:
    asked = ("--shape", "llama3-8b", "--box", "h200-pcie", "--rows", 16, "--tokens", 512)
    code, found = run(*asked, "--strategy", "zero_infinity")
    assert code == Exit.OK
    plan = found["plan"]
    assert (plan["strategy"], set(plan["tiers"]), plan["order"]) == (
        "zero_infinity", {"nvme"}, "microbatches",
    )  # fmt: skip
    code, found = run(*asked, "--strategy", "zero")
    assert code == Exit.USAGE and "wanted one of auto, resident" in found["error"]["message"]


def test_a_strategy_that_does_not_fit_or_is_contradicted_is_refused(run: Run) -> None:
    asked = ("--shape", "llama3-8b", "--box", "rtx-4090", "--rows", 4, "--tokens", 512)
    code, found = run(*asked, "--strategy", "resident")
    said = found["error"]["message"]
    assert code == Exit.REFUSED and "by strategy resident needs" in said and "strategy auto" in said
    code, found = run(*asked, "--strategy", "ratel", "--set", "commit_every_steps=10")
    assert code == Exit.USAGE and "commits every step" in found["error"]["message"]


def test_a_job_file_is_planned_as_the_daemon_would(run: Run, tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=0)
    turns = [{"role": "user", "content": "how many?"}, {"role": "assistant", "content": "three"}]
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 12))
    body = {"model": "tiny", "training_file": "rows.jsonl"}
    (tmp_path / "job.json").write_text(json.dumps(body))
    code, found = run(tmp_path / "job.json", "--model", model, "--device", "cpu",
                      "--volume", tmp_path)  # fmt: skip
    assert code == Exit.OK
    assert found["object"] == "fine_tuning.plan" and found["hyperparameters"]["n_epochs"] == 3
    assert found["plan"]["forecast"]["tokens_per_second"] > 0
    assert found["plan"]["longest_row_is_estimate"]
    assert found["plan"]["strategy"] == found["settings"]["strategy"] == "auto"
    code, found = run(tmp_path / "job.json", "--model", model, "--device", "cpu",
                      "--volume", tmp_path, "--strategy", "memascend")  # fmt: skip
    assert code == Exit.OK
    assert found["plan"]["strategy"] == found["settings"]["strategy"] == "memascend"


def test_what_is_neither_job_nor_shape_is_asked_for(run: Run) -> None:
    code, found = run("--box", "gh200")
    assert code == Exit.USAGE and "--shape and --model" in found["error"]["message"]


def test_the_shipped_boxes_are_listed(run: Run) -> None:
    code, found = run("--box", "list")
    assert code == Exit.OK and "four Gen5 drives" in found["gh200"]


def test_every_shape_is_listed_with_its_parameters(run: Run) -> None:
    code, found = run("--shape", "list")
    assert code == Exit.OK and set(found) == set(SHAPES)
    assert found["llama3-70b"] == pytest.approx(70.6e9, rel=0.01)
    code, found = run("--shape", "lama")
    assert code == Exit.USAGE and all(name in found["error"]["message"] for name in SHAPES)


def test_a_refusal_on_this_box_says_that_another_can_be_planned_for(
    run: Run, tmp_path: Path
) -> None:
    large = ["--shape", "llama3-70b", "--rows", 1, "--tokens", 128]
    small = ["--device", "cpu", "--device-bytes", "1GB", "--host-bytes", "1GB"]
    code, found = run(*large, *small)
    assert code == Exit.REFUSED and "--box list" in found["error"]["message"]
    code, found = run(*large, "--device-bytes", "1GB", "--box", box_file(tmp_path))
    assert code == Exit.REFUSED and "--box list" not in found["error"]["message"]


def test_ways_are_compared_for_a_model_that_is_named(run: Run) -> None:
    code, found = run("--schemes", "--box", "gh200")
    assert code == Exit.USAGE and "--params" in found["error"]["message"]


def test_large_counts_are_said_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert [human_count(n) for n in (0, 2.5, 99.96, 661, 66123.4, 1.23e6)] == [
        "0", "2.5", "100", "661", "66,100", "1,230,000"
    ]  # fmt: skip
    for asked in (["--schemes", "--params", "70e9"], ["--shape", "llama3-8b"]):
        with pytest.raises(SystemExit):
            main(["plan", *asked, "--box", "gh200", "--text"])
        assert not re.search(r"\de[+-]\d", capsys.readouterr().out), asked


def test_a_plan_of_a_job_finds_the_models_that_the_daemon_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tiny_llama(tmp_path / "models" / "tiny", tied=True, seed=3)
    rows = [{"text": f"The wheel turned {i} times before noon."} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": "tiny", "training_file": str(tmp_path / "rows.jsonl")}))
    here = ["plan", str(job), "--data-dir", str(tmp_path / "data"), "--device", "cpu", "--json"]
    with pytest.raises(SystemExit):
        main(here)
    assert "Name the daemon's --models-dir" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "volume").mkdir()
    there = ["--models-dir", str(tmp_path / "models"), "--volume", str(tmp_path / "volume")]
    with pytest.raises(SystemExit) as ended:
        main([*here, *there])
    assert ended.value.code in (None, Exit.OK)
    assert json.loads(capsys.readouterr().out)["plan"]["forecast"]
