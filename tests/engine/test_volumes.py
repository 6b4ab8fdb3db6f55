"""Law 1, over drives: one volume or three of unequal speed, the weights are the same bits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine.report import RunEvent, StopReason
from headrace.storage import RecordSpec, TensorStore, VolumeConfig
from runs import STORE, Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12, 21]
RATES = (400_000_000, 100_000_000, 200_000_000)  # bytes a second of the first, second, third volume
STRIPE_BYTES = 16384


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, a data set and a plain run on one volume at full speed."""
    folder = tmp_path_factory.mktemp("origin")
    model = make_tiny_llama(folder / "model", tied=False, seed=3)
    dataset = write_dataset(folder / "data", LENGTHS, vocab=384)
    run = Run(folder / "plain", model, dataset)
    run.go()
    return model, dataset, run


@pytest.fixture
def unequal_drives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store is made of small stripes, on drives held to RATES in the order they are given."""
    create, open_again = TensorStore.create, TensorStore.open

    def held(volumes: Sequence[VolumeConfig]) -> list[VolumeConfig]:
        return [
            replace(volume, throttle_bytes_per_second=rate)
            for volume, rate in zip(volumes, RATES, strict=False)
        ]

    def slow_create(
        volumes: Sequence[VolumeConfig], records: Sequence[RecordSpec], **settings: Any
    ) -> TensorStore:
        return create(held(volumes), records, stripe_bytes=STRIPE_BYTES, **settings)

    def slow_open(volumes: Sequence[VolumeConfig], **settings: Any) -> TensorStore:
        return open_again(held(volumes), **settings)

    monkeypatch.setattr(TensorStore, "create", slow_create)
    monkeypatch.setattr(TensorStore, "open", slow_open)


def _run(origin: Any, folder: Path, count: int) -> Run:
    model, dataset, _ = origin
    paths = [folder / f"drive{i}" for i in range(count)]
    for path in paths:
        path.mkdir()
    return Run(folder, model, dataset, volumes=tuple(str(path) for path in paths))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_number_and_speed_of_volumes_never_change_a_bit(
    origin: Any, tmp_path: Path, unequal_drives: None, count: int
) -> None:
    run = _run(origin, tmp_path, count)
    run.go()
    assert [m["loss"] for m in run.metrics()] == [m["loss"] for m in origin[2].metrics()]
    assert_same_state(run.state(), origin[2].state())
    _check_shares(run, RATES[:count])


def test_a_run_resumed_on_volumes_in_another_order_ends_with_the_same_bits(
    origin: Any, tmp_path: Path, unequal_drives: None
) -> None:
    run = _run(origin, tmp_path, 3)
    stopped: list[int] = []

    def stop_after_two() -> StopReason | None:
        return "pause" if len(stopped) >= 2 else None

    def count_steps(event: RunEvent) -> None:
        if event.type == "metrics":
            stopped.append(event.step or 0)

    assert run.go(poll=stop_after_two, emit=count_steps).outcome == "paused"
    run.config = replace(run.config, volumes=tuple(reversed(run.config.volumes)))
    assert run.go().outcome == "succeeded"
    assert_same_state(run.state(), origin[2].state())


def _check_shares(run: Run, rates: Sequence[int]) -> None:
    """The store wrote on each volume in proportion to its speed."""
    volumes = [VolumeConfig.parse(text) for text in run.config.volumes]
    with TensorStore.open(volumes, name=STORE, read_only=True) as store:
        written = [one.written_bytes for one in store.status().volumes]
    for count, rate in zip(written, rates, strict=True):
        assert count / sum(written) == pytest.approx(rate / sum(rates), rel=0.15)
