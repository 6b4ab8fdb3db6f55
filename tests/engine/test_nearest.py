"""What is named as the nearest that fits does fit, and little less does not."""

import re
from dataclasses import asdict, replace
from time import process_time
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.engine import (
    STRATEGIES,
    Box,
    CannotFit,
    JobSize,
    ModelSpec,
    Nearest,
    Plan,
    StrategyConflict,
    TrainConfig,
    fit_microbatch,
    make_plan,
    method_spec,
    nearest_fit,
    shape_spec,
)
from headrace.engine.nearest import BUDGETS
from headrace.engine.rates import VolumeRates, default_rates

MIB = 1 << 20
SHAPE = shape_spec("smollm2-135m")
BOX = Box(device="cpu", device_bytes=2**30, host_bytes=2**30, volumes={"/d": 2**40})
NEED = re.compile(r"(\d+) MiB (on the device|of host memory) \([^)]*\), \d+ MiB given")
BUDGET_OF = {"on the device": "device_bytes", "of host memory": "host_bytes"}


def attempt(
    spec: ModelSpec, config: TrainConfig, tokens: int, box: Box, job: JobSize | None = None
) -> Plan:
    """The plan that a job is judged by when it is submitted."""
    fitted = fit_microbatch(spec, config, longest_row_tokens=tokens, box=box)
    return make_plan(spec, fitted, longest_row_tokens=tokens, box=box, job=job)


def fits(spec: ModelSpec, config: TrainConfig, tokens: int, box: Box) -> bool:
    try:
        attempt(spec, config, tokens, box)
    except CannotFit:
        return False
    return True


def changed(config: TrainConfig, name: str, value: Any) -> TrainConfig:
    return TrainConfig(**{**asdict(config), name: value})


def exponential(low: float, high: float) -> st.SearchStrategy[int]:
    return st.floats(low, high).map(lambda power: int(10**power))


@st.composite
def runs(draw: st.DrawFn) -> tuple[ModelSpec, TrainConfig, int, Box]:
    device = draw(st.sampled_from(["cpu", "cuda"]))
    half = device == "cuda" and draw(st.booleans())
    values: dict[str, Any] = {
        "device": device,
        "batch_rows": draw(st.sampled_from([1, 8, 32])),
        "microbatch_rows": draw(st.sampled_from([1, 4])),
        "packing": draw(st.sampled_from(["on", "off"])),
        "clip_mode": draw(st.sampled_from(["exact", "per_layer", "none", "lagged"])),
        "strategy": draw(st.sampled_from(["auto", *STRATEGIES])),
        "state_format": draw(st.sampled_from(["exact", "q8"])),
        "recompute": draw(st.sampled_from(["auto", "all", "none"])),
        "state_tier": draw(st.sampled_from(["auto", "auto", "host", "nvme", "device"])),
        "commit_every_steps": draw(st.sampled_from([1, 10])),
        "method": draw(st.sampled_from(["full", "lora"])),
        "host_bytes": draw(exponential(7, 10)),
        "device_bytes": draw(exponential(7, 10)),
    }
    config = TrainConfig(
        model="m", dataset="d", compute_dtype="bfloat16" if half else "float32", **values,
    )  # fmt: skip
    volumes = {"/d": draw(exponential(8.5, 12))}
    box = Box(device=device, device_bytes=2**30, host_bytes=2**30, volumes=volumes)
    spec = method_spec(shape_spec("smollm2-135m", draw(st.sampled_from([2, 4]))), config)
    return spec, config, draw(st.sampled_from([16, 1024])), box


@settings(max_examples=60, deadline=None, derandomize=True)
@given(runs())
def test_what_is_named_fits_and_little_less_of_a_budget_does_not(
    run: tuple[ModelSpec, TrainConfig, int, Box],
) -> None:
    spec, config, tokens, box = run
    try:
        attempt(spec, config, tokens, box)
        assume(False)
    except StrategyConflict:
        assume(False)
    except CannotFit as error:
        said = str(error)
    found = nearest_fit(spec, config, longest_row_tokens=tokens, box=box)
    for name, value in found.alone.items():
        if name == "longest_row_tokens":
            assert value < tokens and fits(spec, config, value, box)
            continue
        assert fits(spec, changed(config, name, value), tokens, box), name
        if name in BUDGETS:
            assert value > getattr(config, name)
            assert not fits(spec, changed(config, name, int(0.97 * value)), tokens, box), name
    if found.together:
        assert all(value > getattr(config, name) for name, value in found.together.items())
        assert all(
            found.alone.get(name, value) >= 0.97 * value for name, value in found.together.items()
        )
        budgets: dict[str, Any] = dict(found.together)
        both = replace(config, **budgets)
        assert fits(spec, both, tokens, box)
        for name, value in budgets.items():
            assert not fits(spec, changed(both, name, int(0.97 * value)), tokens, box), name
    _agrees(NEED.findall(said), found, volumes_fit="no room on the volumes" not in said)


def _agrees(needs: list[tuple[str, str]], found: Nearest, *, volumes_fit: bool) -> None:
    """What the refusal says is needed is what is named as enough."""
    named = {**found.alone, **found.together}
    needed = {BUDGET_OF[where]: int(number) * MIB for number, where in needs}
    if not volumes_fit:
        return
    assert needed
    if len(needed) == 1:
        ((name, least),) = needed.items()
        if name in named:
            assert 0.97 * (least - MIB) <= named[name] <= 1.03 * least + MIB
    if found.together:
        assert needed.keys() == set(BUDGETS)
        for name, value in found.together.items():
            assert value <= 1.03 * needed[name] + MIB


def test_budgets_that_the_box_has_not_are_told_so() -> None:
    config = TrainConfig(model="m", dataset="d", batch_rows=64, state_tier="host")
    asked = replace(config, host_bytes=300 * MIB, device_bytes=2**30)
    found = nearest_fit(SHAPE, asked, longest_row_tokens=64, box=BOX)
    assert found.alone["host_bytes"] > 2**30 and found.beyond == {"host_bytes": 2**30}
    words = found.in_words(size_of=lambda size: f"{size // MIB} MiB")
    assert "(more than the 1024 MiB that there are here)" in words
    roomy = replace(BOX, host_bytes=2**34)
    found = nearest_fit(SHAPE, asked, longest_row_tokens=64, box=roomy)
    assert not found.beyond
    found = nearest_fit(SHAPE, asked, longest_row_tokens=64, box=roomy, most={"host_bytes": 2**30})
    assert found.beyond == {"host_bytes": 2**30}


def test_budgets_that_have_to_be_raised_together_are_named_together() -> None:
    config = TrainConfig(model="m", dataset="d", host_bytes=2**22, device_bytes=2**25)
    found = nearest_fit(SHAPE, config, longest_row_tokens=64, box=BOX)
    assert not found.alone and found.together.keys() == set(BUDGETS)
    words = found.in_words()
    assert words.startswith("what would fit: ") and " with " in words
    assert Nearest().in_words() == ""


def test_a_run_that_wears_too_much_is_told_the_steps_and_the_share_that_fit() -> None:
    drive = VolumeRates(read=2e9, write=1e9, rated_bytes=1e12)
    box = replace(BOX, rates=replace(default_rates("cpu"), volumes={"/d": drive}))
    config = TrainConfig(model="m", dataset="d", state_tier="nvme", max_wear_share=0.1)
    job = JobSize(num_steps=100)
    with pytest.raises(CannotFit, match="rated for"):
        attempt(SHAPE, config, 64, box, job)
    found = nearest_fit(SHAPE, config, longest_row_tokens=64, box=box, job=job).alone
    assert found.keys() == {"max_steps", "max_wear_share"}
    attempt(SHAPE, replace(config, max_wear_share=found["max_wear_share"]), 64, box, job)
    attempt(SHAPE, config, 64, box, JobSize(num_steps=found["max_steps"]))
    for steps, share in ((found["max_steps"] + 1, 0.1), (100, 0.97 * found["max_wear_share"])):
        with pytest.raises(CannotFit):
            attempt(SHAPE, replace(config, max_wear_share=share), 64, box, JobSize(num_steps=steps))


def test_what_fits_in_memory_and_wears_too_much_is_not_named() -> None:
    drive = VolumeRates(read=2e9, write=1e9, rated_bytes=1e12)
    box = replace(BOX, rates=replace(default_rates("cpu"), volumes={"/d": drive}))
    config = TrainConfig(model="m", dataset="d", state_tier="nvme", batch_rows=64)
    small = replace(config, device_bytes=700 * MIB)
    job = JobSize(num_steps=40)
    free = nearest_fit(SHAPE, small, longest_row_tokens=1024, box=box, job=job)
    limited = replace(small, max_wear_share=0.1)
    found = nearest_fit(SHAPE, limited, longest_row_tokens=1024, box=box, job=job)
    assert found.alone.keys() < free.alone.keys()
    rows = free.alone["batch_rows"]
    longer = JobSize(num_steps=40 * 64 // rows)
    assert "batch_rows" not in found.alone
    with pytest.raises(CannotFit, match="rated for"):
        attempt(SHAPE, replace(limited, batch_rows=rows), 1024, box, longer)


@pytest.mark.parametrize("shape", ["llama3-70b", "dense-120b"])
@pytest.mark.parametrize(("host", "device"), [(1, 24), (64, 2), (1, 2)])
def test_the_search_takes_seconds_for_a_large_model(shape: str, host: int, device: int) -> None:
    box = Box(device="cuda", device_bytes=device << 30, host_bytes=host << 30,
              volumes={"/d": 2**43})  # fmt: skip
    config = TrainConfig(
        model="m", dataset="d", device="cuda", compute_dtype="bfloat16", batch_rows=64,
        microbatch_rows=16, loss_chunk_tokens=4096,
    )  # fmt: skip
    started = process_time()
    found = nearest_fit(shape_spec(shape), config, longest_row_tokens=4096, box=box)
    assert process_time() - started < 5
    assert found.together.keys() == set(BUDGETS) == found.beyond.keys()


def test_a_budget_below_a_mebibyte_is_told_in_bytes() -> None:
    tiny = replace(BOX, device_bytes=100_000)
    with pytest.raises(CannotFit, match=r"100000 bytes given"):
        make_plan(SHAPE, TrainConfig(model="m", dataset="d"), longest_row_tokens=64, box=tiny)
