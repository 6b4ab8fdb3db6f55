"""What a plan says of wear, time, money, and of what would help."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import Box, CannotFit, TrainConfig, make_plan, shape_spec
from headrace.engine.account import JobSize
from headrace.engine.advice import find_changes
from headrace.engine.rates import Prices, VolumeRates, default_rates

SPEC = shape_spec("smollm2-135m")
MIB = 2**20
DRIVE = VolumeRates(read=2e9, write=1e9, rated_bytes=1e12)
RATES = replace(default_rates("cpu"), volumes={"/d": DRIVE})
BOX = Box(device="cpu", device_bytes=2**30, host_bytes=2**30, volumes={"/d": 2**40}, rates=RATES)
JOB = JobSize(num_steps=100)


def config(**settings: Any) -> TrainConfig:
    given = {"model": "m", "dataset": "d", "batch_rows": 8, "microbatch_rows": 1}
    return TrainConfig(**(given | settings))  # type: ignore[arg-type]


def plan(box: Box = BOX, job: JobSize | None = JOB, tokens: int = 256, **settings: Any):  # type: ignore[no-untyped-def]
    return make_plan(SPEC, config(**settings), longest_row_tokens=tokens, box=box, job=job)


def test_wear_counts_import_and_every_step() -> None:
    found = plan(state_tier="nvme").forecast.wear
    state = 12 * SPEC.num_params
    assert found.job_bytes == pytest.approx(101 * state, rel=0.02)
    assert found.share == pytest.approx(101 * state / 1e12, rel=0.02)
    assert found.life_steps == pytest.approx(1e12 / state, rel=0.02)


def test_state_in_memory_wears_the_drive_by_its_commits_alone() -> None:
    box = replace(BOX, host_bytes=2**33)
    every, rare = (plan(box=box, commit_every_steps=n).forecast for n in (1, 10))
    assert every.step.link_bytes["nvme_write"] == 0
    assert every.wear.step_bytes == pytest.approx(12 * SPEC.num_params, rel=0.02)
    assert rare.wear.step_bytes < every.wear.step_bytes
    assert rare.tokens_per_second > every.tokens_per_second


def test_a_run_that_wears_the_drive_too_much_is_refused_with_numbers() -> None:
    plan(state_tier="nvme", max_wear_share=0.2)
    with pytest.raises(CannotFit, match=r"would write 0\.19\d TB, 19\.\d % of the 1 TB"):
        plan(state_tier="nvme", max_wear_share=0.1)
    unrated = replace(BOX, rates=replace(RATES, volumes={"/d": replace(DRIVE, rated_bytes=None)}))
    with pytest.raises(CannotFit, match="rated life of the drives is not known"):
        plan(box=unrated, state_tier="nvme", max_wear_share=0.5)


def test_the_finish_has_a_range_that_holds_the_expected() -> None:
    found = plan(state_tier="nvme").forecast
    assert found.job_seconds.low < found.job_seconds.expected < found.job_seconds.high
    assert found.job_seconds.expected > 100 * found.step.seconds
    assert plan(job=None).forecast.job_seconds is None


def test_preferences_take_a_forward_pass_over_all_rows_first() -> None:
    """And the head's forward twice in each step."""
    plain, dpo = (plan(state_tier="host", host_bytes=2**34, num_epochs=4, objective=one).forecast
                  for one in ("supervised", "dpo"))  # fmt: skip
    forward = next(one.seconds for one in dpo.step.phases if one.phase == "forward")
    assert dpo.reference_seconds == pytest.approx(25 * forward)
    assert plain.reference_seconds == 0
    steps = 100 * (dpo.step.seconds - plain.step.seconds)
    assert steps > 0
    more = dpo.job_seconds.expected - plain.job_seconds.expected
    assert more == pytest.approx(steps + dpo.reference_seconds, rel=1e-6)


def test_sample_texts_take_as_long_as_the_weights_take_to_stream_for_each_token() -> None:
    samples: dict[str, Any] = {"sample_prompts": ("a", "b"), "sample_prompt_tokens": 8}
    streamed = plan(state_tier="nvme", sample_tokens=30, **samples).forecast
    weights = 4 * SPEC.num_params  # of which float32 compute reads both halves
    link = max(weights / DRIVE.read, weights / RATES.h2d)
    assert streamed.sample_seconds == pytest.approx(30 * link, rel=0.02)
    large: dict[str, Any] = {"device_bytes": 2**34, "host_bytes": 2**34}
    assert plan(state_tier="device", **samples, **large).forecast.sample_seconds == 0
    assert plan(state_tier="nvme").forecast.sample_seconds == 0


def test_shorter_rows_than_the_longest_make_shorter_steps() -> None:
    full = plan(state_tier="host", host_bytes=2**34).forecast
    job = JobSize(num_steps=100, row_tokens=64.0)
    some = plan(job=job, state_tier="host", host_bytes=2**34).forecast
    assert some.tokens_per_step == 8 * 64 < full.tokens_per_step
    assert some.step.seconds < full.step.seconds


def test_the_cost_account_weighs_one_device_against_as_many_as_hold_the_state() -> None:
    prices = Prices(device=2.0, host=0.5, volumes=0.5)
    box = replace(BOX, rates=replace(RATES, prices=prices))
    found = plan(box=box, state_tier="nvme").forecast
    assert found.money.price_per_hour == 3.0
    per_token = 3.0 / 3600 / found.tokens_per_second
    assert found.money.price_per_million_tokens == pytest.approx(1e6 * per_token)
    theirs = found.money.devices_in_memory * 2.0 + 0.5
    # At the break-even rate, their price a token is ours.
    assert theirs / 3600 / found.money.break_even_tokens_per_second == pytest.approx(per_token)
    assert found.money.devices_in_memory == 3  # 1.6 GB of state and 1 GiB of the rest, in 1 GiB


def test_changes_are_what_planning_them_gives() -> None:
    now = plan(state_tier="nvme", batch_rows=2, host_bytes=2**30)
    found = find_changes(
        now, SPEC, config(state_tier="nvme", batch_rows=2), longest_row_tokens=256, box=BOX, job=JOB
    )
    assert found == sorted(found, key=lambda one: -one.gain) and 1 <= len(found) <= 3
    (more,) = [one for one in found if one.change.startswith("2 x tokens per step")]
    planned = plan(state_tier="nvme", batch_rows=4).forecast.tokens_per_second
    assert more.tokens_per_second == pytest.approx(planned)
    assert more.gain == pytest.approx(planned / now.forecast.tokens_per_second - 1)
    assert str(more).startswith("2 x tokens per step (4 rows): bound by ")


def test_no_drive_is_worn_where_memory_is_as_fast() -> None:
    """On a GPU too: state goes to NVMe only when memory is too small, or the step much shorter."""
    rates = default_rates("cuda")
    box = Box(device="cuda", device_bytes=40 * 2**30, host_bytes=200 * 2**30, volumes={"/d": 2**42})
    given = config(device="cuda", compute_dtype="bfloat16", commit_every_steps=100)
    spec = shape_spec("llama3-8b")
    found = make_plan(spec, given, longest_row_tokens=1024, box=replace(box, rates=rates))
    assert "nvme" not in found.tiers and found.forecast.step.link_bytes["nvme_read"] == 0


@pytest.mark.parametrize("shape", ["llama3-70b", "dense-120b"])
def test_a_large_model_is_planned_in_seconds_and_little_memory(shape: str) -> None:
    """From its shape alone, with everything that would help: under 5 s and 300 MB, no torch."""
    code = f"""
import sys, time
from pathlib import Path
from headrace.engine import Box, TrainConfig, make_plan, shape_spec
from headrace.engine.advice import plan_report
started = time.process_time()  # the machine may be shared
spec = shape_spec({shape!r})
config = TrainConfig(model="m", dataset="d", device="cuda", compute_dtype="bfloat16",
                     batch_rows=16, microbatch_rows=1, loss_chunk_tokens=4096)
box = Box(device="cuda", device_bytes=126 * 2**30, host_bytes=400 * 2**30, volumes={{"/d": 2**43}})
plan = make_plan(spec, config, longest_row_tokens=4096, box=box)
report = plan_report(plan, spec, config, longest_row_tokens=4096, box=box)
assert report["changes"] and report["forecast"]["conditions"]
seconds = time.process_time() - started
lines = Path("/proc/self/status").read_text().splitlines()
(peak,) = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
assert "torch" not in sys.modules and "transformers" not in sys.modules
assert seconds < 5 and peak < 300e6, (seconds, peak)
"""
    source = Path(__file__).parents[2] / ".src"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(source)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
