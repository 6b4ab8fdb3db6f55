"""What is measured of compute is kept with the hardware it holds for, and plans go by it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from headrace.engine import (
    Box,
    JobSize,
    RunEvent,
    TrainConfig,
    calibration,
    known_rates,
    make_plan,
    measure_box,
    measure_shape,
    measure_work,
    rate_file,
    shape_spec,
)
from headrace.engine.calibration import calibrate_compute, measure_once
from headrace.engine.cost import StepCost
from headrace.engine.forecast import Forecast
from headrace.engine.measure_calls import measure_calls
from headrace.engine.measure_memory import MeasuringSizes
from headrace.engine.packing import RowLengths
from headrace.engine.rate_file import mark_drift
from headrace.engine.rates import LayerRate, Rates, ShapeRates, default_rates, shape_key
from headrace.engine.state_record import state_record
from headrace.engine.stopwatch import Stopwatch
from headrace.storage import (
    Calibration,
    RecordSpec,
    TensorSpec,
    TensorStore,
    VolumeConfig,
    calibrate_volume,
    read_calibration,
    write_calibration,
)

SPEC = shape_spec("tiny", layers=1)
CONFIG = TrainConfig(model="m", dataset="d", batch_rows=4)
KEY = shape_key(SPEC, CONFIG)


def held_up(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    """Let the rounds of calibration be held up for these shares of the time; then for the last."""
    left = list(shares)
    watch = SimpleNamespace(share=lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(calibration, "HeldUp", lambda: watch)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest measurement that is one."""
    monkeypatch.setattr(measure_box, "PART_SECONDS", {False: 0.0, True: 0.0})
    monkeypatch.setattr(measure_shape, "TOKENS", {"cpu": (16, 32), "cuda": (16,)})
    monkeypatch.setattr(measure_box, "COPY_BYTES", {"cpu": 2**21, "cuda": 2**21})
    monkeypatch.setattr(measure_box, "ELEMENTS", {"cpu": 2**14, "cuda": 2**14})
    held_up(monkeypatch, 0.0)
    monkeypatch.setattr("headrace.storage.calibrate.HeldUp.share", lambda watch: 0.0)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> VolumeConfig:
    return VolumeConfig(path=tmp_path_factory.mktemp("volume"))


def test_what_is_measured_is_found_again_by_shape(volume: VolumeConfig) -> None:
    measured = calibrate_compute(SPEC, CONFIG, [volume])
    found = known_rates("cpu", [volume])
    assert found.shapes == measured.shapes and found.h2d == measured.h2d
    mine = found.for_shape(shape_key(SPEC, CONFIG))
    assert mine.origin == "measured" and [one.tokens for one in mine.layers] == [16, 32]
    assert all(one.forward_flops > 0 and one.backward_flops > 0 for one in mine.layers)
    assert all(one.kept_forward_flops and one.kept_backward_flops for one in mine.layers)
    assert mine.head_flops is not None and mine.head_flops > 0
    assert set(mine.work) == {
        "join",
        "join_kept",
        "accumulate",
        "finish",
        "update",
        "host_update",
        "host_update_aside",
    }


def test_a_slow_second_of_the_box_is_one_round_and_changes_nothing(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter([2e9, 6e9, 5e9, 4e9, 1e9])
    measured = replace(default_rates("cpu"), origin="measured")
    monkeypatch.setattr(
        calibration, "measure_box", lambda *_, **__: replace(measured, h2d=next(rounds))
    )
    assert calibrate_compute(SPEC, CONFIG, [volume]).h2d == 4e9
    assert next(rounds, None) is None


def steps_of(monkeypatch: pytest.MonkeyPatch, *rates: float) -> None:
    """Let the rounds find these rates of copies up, and then the last."""
    left, measured = list(rates), replace(default_rates("cpu"), origin="measured")

    def measure(*_: object, **__: object) -> Rates:
        return replace(measured, h2d=left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(calibration, "measure_box", measure)


def test_rounds_that_other_work_held_up_are_made_again_and_left_out(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "MOST_SECONDS", {False: 1e9, True: 1e9})
    steps_of(monkeypatch, 1e9, 2e9, 5e9, 6e9, 7e9, 8e9, 9e9, 1e12)
    held_up(monkeypatch, 0.5, 0.3, 0.01, 0.02, 0.03, 0.04, 0.05)
    found = calibrate_compute(SPEC, CONFIG, [volume])
    assert (found.h2d, found.held_up) == (7e9, 0.03)
    assert known_rates("cpu", [volume]).for_shape(shape_key(SPEC, CONFIG)).doubts == ()


def test_a_box_that_was_busy_all_the_time_says_so_and_is_measured_by_the_next_job_again(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it could do at its best counts, and a plan by that is no promise."""
    steps_of(monkeypatch, 1e9, 6e9, 5e9)
    held_up(monkeypatch, 0.38)
    assert calibrate_compute(SPEC, CONFIG, [volume]).h2d == 6e9

    def forecast() -> Forecast:
        box = Box(device="cpu", device_bytes=2**32, host_bytes=2**32, volumes={"/d": 2**40},
                  rates=known_rates("cpu", [volume]))  # fmt: skip
        return make_plan(SPEC, CONFIG, longest_row_tokens=64, box=box).forecast

    busy = forecast()
    words = "measured while other work held this box up for 38 % of the time"
    assert busy.origin == "measured" and busy.doubts == (words,)
    assert busy.step_seconds.low < 0.6 * busy.step_seconds.expected
    held_up(monkeypatch, 0.0)
    messages = measure_again(volume)
    assert messages[-1] == f"measuring this machine with the model's layers again: {words}"
    assert forecast().doubts == () and forecast().step_seconds.low > 0.8 * busy.step_seconds.low
    assert measure_again(volume) == []


def measure_again(volume: VolumeConfig) -> list[str]:
    """What the next job says that it measures."""
    events: list[RunEvent] = []
    measure_once(SPEC, CONFIG, [volume], microbatch_tokens=16, emit=events.append)
    return [event.message for event in events]


@pytest.mark.parametrize("drives", [False, True])
def test_figures_that_a_run_has_found_wrong_are_measured_by_the_next_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drives: bool
) -> None:
    monkeypatch.setattr("headrace.storage.calibrate.SECONDS", 0.2)
    volume, key = VolumeConfig(path=tmp_path), shape_key(SPEC, CONFIG)
    assert len(measure_again(volume)) == 2 and measure_again(volume) == []
    mark_drift([volume], key, "a step takes 2 s", device_name="", drives=drives)
    (doubt, *others) = known_rates("cpu", [volume]).for_shape(key).doubts[::-1]
    assert doubt == "a step takes 2 s"
    assert others == ([f"{tmp_path} a step takes 2 s"] if drives else [])
    again = measure_again(volume)
    assert len(again) == 1 + drives
    assert all(one.endswith(" again: a step takes 2 s") for one in again)
    assert known_rates("cpu", [volume]).for_shape(key).doubts == ()
    assert measure_again(volume) == []


def test_a_volume_that_was_measured_in_full_is_told_to_be_off_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.calibrate.SECONDS", 0.2)
    volume, key = VolumeConfig(path=tmp_path), shape_key(SPEC, CONFIG)
    measure_again(volume)
    known = read_calibration(tmp_path)
    assert known is not None
    write_calibration(tmp_path, replace(known, full=True))
    mark_drift([volume], key, "a step takes 2 s", device_name="", drives=True)
    (message,) = measure_again(volume)
    assert "this machine" in message
    assert known_rates("cpu", [volume]).doubts == (f"{tmp_path} a step takes 2 s",)


def test_a_shape_that_was_not_measured_goes_by_another_and_is_no_measurement(
    volume: VolumeConfig,
) -> None:
    calibrate_compute(SPEC, CONFIG, [volume])
    other = replace(CONFIG, compute_dtype="bfloat16")
    guessed = known_rates("cpu", [volume]).for_shape(shape_key(SPEC, other))
    assert guessed.origin == "default" and guessed.layers[0].tokens == 16


def test_figures_of_other_hardware_do_not_count(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate_compute(SPEC, CONFIG, [volume])
    assert known_rates("cpu", [volume]).origin == "measured"
    monkeypatch.setattr(rate_file, "_processor", lambda: "another one")
    assert known_rates("cpu", [volume]).origin == "default"
    assert known_rates("cpu", [volume], device_name="NVIDIA H200").origin == "default"


def test_a_rating_that_was_given_is_what_wear_is_a_share_of(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.calibrate.SECONDS", 0.2)
    calibrate_volume(volume)
    calibrate_compute(SPEC, CONFIG, [volume], rated_bytes=1e12)
    calibrate_compute(SPEC, CONFIG, [volume])  # a later one forgets nothing
    path = str(volume.path)
    rates = known_rates("cpu", [volume])
    box = Box(device="cpu", device_bytes=2**32, host_bytes=2**32, volumes={path: 2**40},
              rates=rates)  # fmt: skip
    plan = make_plan(SPEC, CONFIG, longest_row_tokens=16, box=box, job=JobSize(num_steps=10))
    wear = plan.forecast.wear
    assert wear.rated_bytes == 1e12 and wear.share == pytest.approx(wear.job_bytes / 1e12)  # type: ignore[operator]


def test_a_plan_goes_by_what_was_measured() -> None:
    """The same run on a box whose layers are ten times faster: compute takes a tenth."""
    slow = LayerRate(tokens=64, forward_flops=1e9, backward_flops=1e9)
    fast = LayerRate(tokens=64, forward_flops=1e10, backward_flops=1e10)

    def compute(rate: LayerRate) -> float:
        shape = ShapeRates(measured_at="now", layers=(rate,), head_flops=rate.forward_flops)
        rates = replace(
            default_rates("cpu"), origin="measured", shapes={shape_key(SPEC, CONFIG): shape},
            work=dict.fromkeys(default_rates("cpu").work, 1e15), device_memory=1e15, h2d=1e15,
            d2h=1e15,
        )  # fmt: skip
        box = Box(device="cpu", device_bytes=2**32, host_bytes=2**32, volumes={"/d": 2**40},
                  rates=rates)  # fmt: skip
        plan = make_plan(SPEC, CONFIG, longest_row_tokens=64, box=box)
        assert plan.forecast.origin == "measured"
        return plan.forecast.step.busy_seconds()["compute"]

    assert compute(slow) == pytest.approx(10 * compute(fast), rel=1e-6)


def test_what_the_store_takes_for_a_record_is_measured_and_lengthens_a_step(
    volume: VolumeConfig,
) -> None:
    """Every read of a step waits for the one before, so each adds its own."""
    measured = calibrate_compute(SPEC, CONFIG, [volume])
    assert 0 < measured.read_seconds < 1 and 0 < measured.write_seconds < 1
    assert not list(volume.path.glob("*calls*"))

    def seconds(**calls: Any) -> StepCost:
        rates = replace(default_rates("cpu"), **calls)
        config = replace(CONFIG, state_tier="nvme", clip_way="serial")
        box = Box(device="cpu", device_bytes=2**32, host_bytes=2**32, volumes={"/d": 2**40},
                  rates=rates)  # fmt: skip
        return make_plan(SPEC, config, longest_row_tokens=64, box=box).forecast.step

    plain, slow = seconds(), seconds(read_seconds=0.1)
    assert slow.link_bytes == plain.link_bytes
    num_reads = 2 * len(SPEC.records) - 2  # of the last layer one; the norm is read once
    assert slow.seconds - plain.seconds == pytest.approx(0.1 * num_reads, rel=0.15)
    assert seconds(write_seconds=0.1).seconds > plain.seconds + 0.1


def test_who_finds_another_process_measuring_goes_without_and_leaves_it_alone(
    tmp_path: Path,
) -> None:
    volume, norm = VolumeConfig(path=tmp_path), state_record(SPEC.of_kind("norm")[0], "exact")
    with TensorStore.create([volume], [norm], name="calibrate-calls"):
        assert measure_calls(volume, [norm]) == (0.0, 0.0)
        assert TensorStore.exists([volume], name="calibrate-calls")
    assert min(measure_calls(volume, [norm])) > 0
    assert not list(tmp_path.glob("*calls*"))


def test_a_record_pays_for_its_bytes_in_the_store_as_well_up_to_one_call_of_it(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is made while the drive rests, so that a large record takes more than its
    bytes and what a small one takes."""
    sizes: list[int] = []

    def time_calls(volume: VolumeConfig, records: Sequence[RecordSpec]) -> list[Any]:
        sizes.extend(record.padded_bytes for record in records)
        drive = known_rates("cpu", [volume]).drives([str(volume.path)])
        return [(1e-3 + 1 / drive.read, 1e-3 + 1 / drive.write),
                (2e-3 + sizes[-1] / drive.read, 5e-4 + sizes[-1] / drive.write)]  # fmt: skip

    monkeypatch.setattr("headrace.engine.measure_calls._time_calls", time_calls)
    tensor = TensorSpec(name="bytes", dtype="uint8", shape=(2**26,))
    large = RecordSpec(name="large", tensors=(tensor,))
    assert measure_calls(volume, [large]) == pytest.approx((2e-3, 1e-3))
    assert sizes == [4096, 2**24]


def test_a_visit_takes_what_calls_take_behind_a_layer() -> None:
    rate = LayerRate(tokens=64, forward_flops=1e12, backward_flops=1e12)
    plain = ShapeRates(measured_at="now", layers=(rate,), head_flops=1e12)
    measured = replace(default_rates("cpu"), origin="measured", visit_seconds=1e-4)

    def visit_seconds(shape: ShapeRates) -> float:
        return replace(measured, shapes={"one": shape}).for_shape("one").visit_seconds

    assert visit_seconds(plain) == 1e-4
    assert visit_seconds(replace(plain, visit_seconds=2e-4)) == pytest.approx(3e-4)
    assert measure_shape.measure_shape(SPEC, CONFIG).visit_seconds > 0


@pytest.mark.parametrize("recompute", ["none", "all"])
def test_a_layer_whose_activations_stay_goes_by_rates_of_its_own(
    recompute: Literal["none", "all"],
) -> None:
    """Twice as fast both ways: of kept layers half the time, of recomputed ones all of it."""

    def compute(**kept: float) -> float:
        layer = LayerRate(tokens=64, forward_flops=1e9, backward_flops=1e9, **kept)
        shape = ShapeRates(measured_at="now", layers=(layer,), head_flops=1e15)
        rates = replace(
            default_rates("cpu"), origin="measured", shapes={shape_key(SPEC, CONFIG): shape},
            work=dict.fromkeys(default_rates("cpu").work, 1e15), device_memory=1e15, h2d=1e15,
            d2h=1e15,
        )  # fmt: skip
        box = Box(device="cpu", device_bytes=2**32, host_bytes=2**32, volumes={"/d": 2**40},
                  rates=rates)  # fmt: skip
        config = replace(CONFIG, recompute=recompute)
        plan = make_plan(SPEC, config, longest_row_tokens=64, box=box)
        return plan.forecast.step.busy_seconds()["compute"]

    share = compute(kept_forward_flops=2e9, kept_backward_flops=2e9) / compute()
    assert share == pytest.approx(0.5 if recompute == "none" else 1.0, rel=1e-4)


def test_the_head_is_timed_with_a_chunk_of_the_run_where_that_is_quick() -> None:
    config = replace(CONFIG, loss_chunk_tokens=512)
    assert measure_shape._head_tokens(SPEC, config, 256) == 256
    assert measure_shape._head_tokens(SPEC, config, 4096) == 512
    assert measure_shape._head_tokens(SPEC, config, None) == 128
    large = shape_spec("llama3-70b", layers=1)  # 128 of its tokens are 8e11 operations
    assert measure_shape._head_tokens(large, config, 4096) == 128


def test_the_first_job_measures_and_the_second_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.calibrate.SECONDS", 0.2)
    volume = VolumeConfig(path=tmp_path)
    events: list[RunEvent] = []

    def measure(**settings: Any) -> list[str]:
        events.clear()
        config = replace(CONFIG, **settings)
        measure_once(SPEC, config, [volume], microbatch_tokens=16, emit=events.append)
        return [event.message for event in events]

    assert [text.split()[1] for text in measure()] == ["volume", "this"]
    assert read_calibration(tmp_path) is not None
    assert measure() == []
    # Another dtype makes other layers; the drive stays the same.
    assert [text.split()[1] for text in measure(compute_dtype="bfloat16")] == ["this"]
    kept = json.loads((tmp_path / rate_file.FILE_NAME).read_text())["rates"]["shapes"]
    assert len(kept) == 2


DAMAGES: dict[str, Any] = {
    "null": None, "a text": "x", "a list": [], "a list of one": [1], "nothing in it": {},
    "another thing": {"a": 1}, "zero": 0, "below zero": -1, "true": True, "infinite": float("inf"),
    "no number": float("nan"), "huge": 10**400,
}  # fmt: skip


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in a JSON value, at any depth."""
    yield path
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    for key, one in inner.items() if isinstance(inner, dict) else ():
        yield from places(one, (*path, key))


def damaged(value: Any, path: Sequence[str | int], damage: Any) -> Any:
    """The value with the damage at that place."""
    if not path:
        return damage
    copied = value.copy()
    copied[path[0]] = damaged(value[path[0]], path[1:], damage)
    return copied


@pytest.mark.parametrize("file", [rate_file.FILE_NAME, ".headrace-calibration.json"])
def test_damaged_figures_fail_no_plan_and_are_measured_again_or_harmless(
    tmp_path: Path, file: str
) -> None:
    volume = measured_in(tmp_path, drive_full=True)
    whole = {path: path.read_text() for path in tmp_path.iterdir()}
    path = tmp_path / file
    values, size = json.loads(whole[path]), len(whole[path])
    cases = [
        json.dumps(damaged(values, place, damage))
        for place in places(values) for damage in DAMAGES.values()
    ]  # fmt: skip
    cases += [whole[path][:cut] for cut in range(0, size, size // 40)]
    cases += ["[" * 100_000, "\0" * 100]
    for text in cases:
        for each, content in whole.items():
            each.write_text(content)
        path.write_text(text)
        rates = known_rates("cpu", [volume])
        for shape in (rates.for_shape(KEY), rates.for_shape("another")):
            drives = shape.drives([str(tmp_path)])
            assert 0 < drives.seconds(1e9, 1e9) < 1e40
            assert 0 < shape.flops(20, backward=True, kept=True)
            assert 0 < shape.params_per_second("join")
            assert min(shape.link(busy=True)) > 0
            json.dumps(shape.to_dict(), allow_nan=False)
        mark_drift([volume], KEY, "slower", device_name="", drives=True)


def measured_in(folder: Path, *, drive_full: bool = False) -> VolumeConfig:
    """A volume with figures of its own and of the model's layers, as if they were measured."""
    layer = LayerRate(tokens=16, forward_flops=1e10, backward_flops=1e10, kept_forward_flops=1e10,
                      kept_backward_flops=1e10)  # fmt: skip
    shape = ShapeRates(
        measured_at="2026-11-30", layers=(layer,), head_flops=1e9, work={"join": 1e8}
    )
    rates = replace(default_rates("cpu"), origin="measured", shapes={KEY: shape})
    rates = replace(rates, rated_bytes={str(folder): 1e15})
    rate_file.write_rates([VolumeConfig(path=folder)], rates)
    write_calibration(folder, Calibration(
        measured_at="2026-11-30", active="direct", filesystem="ext4", full=drive_full,
        read_bytes_per_second=1e9, write_bytes_per_second=1e9, mixed_bytes_per_second=1e9,
        first_write_bytes_per_second=1e9, written_bytes=1, seconds=1.0,
    ))  # fmt: skip
    return VolumeConfig(path=folder)


def test_a_volume_that_takes_no_figures_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.storage.calibrate.SECONDS", 0.2)
    monkeypatch.setattr("headrace.storage.calibrate.write_calibration", full)
    monkeypatch.setattr(calibration, "write_rates", full)
    events: list[RunEvent] = []
    volumes = [VolumeConfig(path=tmp_path)]
    measure_once(SPEC, CONFIG, volumes, microbatch_tokens=16, emit=events.append)
    warned = [event.message for event in events if event.level == "warn"]
    assert [text.split(":")[0] for text in warned] == ["not measured", "not kept"]
    assert all("No space left" in text for text in warned)
    assert list(tmp_path.iterdir()) == []


def test_shapes_that_another_process_measured_meanwhile_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = measure_shape.measure_shape

    def measured_meanwhile(*arguments: Any, **options: Any) -> ShapeRates:
        measured_in(tmp_path)
        return timed(*arguments, **options)

    monkeypatch.setattr(calibration, "measure_shape", measured_meanwhile)
    config = replace(CONFIG, compute_dtype="bfloat16")
    rates = calibrate_compute(SPEC, config, [VolumeConfig(path=tmp_path)])
    assert set(rates.shapes) == {KEY, shape_key(SPEC, config)}


def test_layers_are_timed_with_rows_as_long_as_those_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a processor attention reaches a fraction of what the products do."""
    seen: list[tuple[int, int]] = []
    timed = measure_shape._time_layer

    def time_layer(*args: Any) -> Any:
        seen.append(args[5])
        return timed(*args)

    monkeypatch.setattr(measure_shape, "_time_layer", time_layer)
    found = measure_shape.measure_shape(SPEC, CONFIG, row_tokens=8)
    assert seen == [(2, 8), (4, 8)]
    assert [rate.tokens for rate in found.layers] == [16, 32]
    assert measure_shape.measure_shape(SPEC, CONFIG).layers[-1].tokens == 32
    assert seen[2:] == [(1, 16), (1, 32)]


def test_a_layer_is_timed_with_the_microbatch_of_the_run_itself() -> None:
    def timed(most_tokens: int | None, sizes: list[int] | None = None) -> list[int]:
        found = measure_shape.measure_shape(SPEC, CONFIG, most_tokens=most_tokens, sizes=sizes)
        return [rate.tokens for rate in found.layers]

    assert timed(20) == [16, 20, 32]
    assert timed(12) == [16]
    assert timed(100) == timed(None) == [16, 32]
    assert timed(20, [20]) == [20]


def test_the_usual_row_is_the_mean_one_and_of_preferences_an_answer() -> None:
    lengths = RowLengths(training=np.array([10, 20, 60]))
    assert (lengths.usual("supervised"), lengths.usual("dpo")) == (30, 15)


def test_work_on_parameters_is_timed_in_turn_and_not_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a step other work has filled the caches before each."""
    made: list[str] = []
    names = {"read_weights": "join", "round_and_square": "finish", "adamw_update": "update"}
    for name, work in names.items():
        monkeypatch.setattr(measure_work, name, lambda *_, work=work: made.append(work))
    room = MeasuringSizes(SPEC, CONFIG, None)
    found = measure_work.measure_work(SPEC, CONFIG, Stopwatch(torch.device("cpu"), 0.0), room)
    assert made == ["join", "join", "finish", "update"] * 4  # one to warm up, and three
    assert set(found) == {"join", "join_kept", "accumulate", "finish", "update"}


def test_gradients_are_summed_right_behind_the_layer_that_made_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself it takes a fifth of the time: its operands lie in a cache, and no page is freed."""
    monkeypatch.setattr(measure_shape, "measure_work", lambda *_: {"join": 1.0, "accumulate": 7.0})
    found = measure_shape.measure_shape(SPEC, CONFIG, sizes=[16]).work
    assert found["join"] == 1.0 and found["accumulate"] not in (0.0, 7.0)
    alone = MeasuringSizes(SPEC, CONFIG, 0)
    assert alone.num_copies(16, 16) == 1
    assert measure_shape.measure_shape(SPEC, CONFIG, sizes=[16], most_bytes=0).work == {
        "join": 1.0, "accumulate": 7.0,
    }  # fmt: skip
