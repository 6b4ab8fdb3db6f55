"""The largest step is tried before the first, and leaves no trace."""

from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset, write_preferences
from headrace.engine import TokenDataset, TrainConfig
from headrace.engine.capacity import CannotFit
from headrace.engine.data import step_microbatches
from headrace.engine.packing import Arrangement, settle_microbatch
from headrace.engine.rehearsal import SOON, largest_step
from headrace.engine.report import RunEvent
from headrace.engine.step_compute import StepCompute
from headrace.storage import TensorStore
from runs import Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 12, 7, 40, 11, 5, 16]


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Path, Path]:
    model = make_tiny_llama(tmp_path / "model", tied=False, seed=1)
    return model, write_dataset(tmp_path / "data", LENGTHS, vocab=384)


class Died(Exception):
    """Stands for SIGKILL."""


def rehearsals(run: Run) -> list[RunEvent]:
    return [event for event in run.events if "rehearsal" in event.data]


CASES: dict[str, dict[str, Any]] = {
    "nvme": {},
    "nvme-per-layer": {"clip_mode": "per_layer"},
    "host-kept": {"state_tier": "host", "recompute": "none"},
    "device": {"state_tier": "device"},
    "deferred": {"clip_way": "deferred", "commit_every_steps": 2},
    "half": {"compute_dtype": "bfloat16", "activation_tier": "host"},
    "spilled": {"activation_tier": "nvme"},
    "microbatches": {"strategy": "zero_infinity"},
    "adapters": {"method": "lora", "lora_rank": 4},
}


@pytest.mark.parametrize("case", CASES)
def test_a_rehearsal_changes_no_bit_of_the_run(
    origin: tuple[Path, Path], tmp_path: Path, case: str
) -> None:
    settings = {"batch_rows": 3, "max_steps": 2, **CASES[case]}
    if case == "microbatches":
        settings |= {"state_tier": "auto"}
    plain = Run(tmp_path / "plain", *origin, rehearsal="off", **settings)
    tried = Run(tmp_path / "tried", *origin, rehearsal="on", **settings)
    for run in (plain, tried):
        run.go()
    assert_same_state(tried.state(), plain.state())
    assert [one["loss"] for one in tried.metrics()] == [one["loss"] for one in plain.metrics()]
    assert not rehearsals(plain)
    (told,) = rehearsals(tried)
    where = tried.events.index(told)
    assert not [event for event in tried.events[:where] if event.type == "metrics"]


def test_preferences_are_rehearsed_too(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1, layers=2)
    data = write_preferences(tmp_path / "data", [(9, 12), (14, 8), (11, 13)], vocab=384)
    settings: dict[str, Any] = {"objective": "dpo", "batch_rows": 2, "microbatch_rows": 2}
    plain = Run(tmp_path / "plain", model, data, rehearsal="off", **settings)
    tried = Run(tmp_path / "tried", model, data, rehearsal="on", **settings)
    for run in (plain, tried):
        run.go()
    assert rehearsals(tried)
    assert_same_state(tried.state(), plain.state())


def test_only_a_largest_step_that_comes_late_is_rehearsed_by_itself(
    tmp_path: Path, origin: tuple[Path, Path]
) -> None:
    model, _ = origin
    data = write_dataset(tmp_path / "many", [6] * 12 + [40] + [6] * 11, vocab=384)
    settings: dict[str, Any] = {"batch_rows": 1, "microbatch_rows": 1, "num_epochs": 1}
    late = Run(tmp_path / "late", model, data, max_steps=None, **settings)
    config = settle_microbatch(late.config, 40)
    largest = largest_step(TokenDataset.open(data).lengths, config, 24)
    late.go()
    assert largest.step > SOON and largest.microbatch_tokens == 40
    assert rehearsals(late)[0].data["rehearsal"]["step"] == largest.step
    early = Run(tmp_path / "early", model, data, max_steps=SOON, **settings)
    early.go()
    assert not rehearsals(early)


@pytest.mark.parametrize(
    "settings",
    [{}, {"packing": "off"}, {"microbatch_tokens": 20}, {"batch_rows": 2, "max_steps": 9}],
    ids=["packed", "padded", "long-rows", "ties"],
)
def test_the_largest_step_is_that_of_its_microbatches(
    origin: tuple[Path, Path], settings: dict[str, Any]
) -> None:
    model, dataset = origin
    values: dict[str, Any] = {"batch_rows": 3, "microbatch_rows": 2, "max_steps": 8}
    config = TrainConfig(model=str(model), dataset=str(dataset), **{**values, **settings})
    config = settle_microbatch(config, max(LENGTHS))
    data, total = TokenDataset.open(dataset), config.max_steps or 0
    found = largest_step(data.lengths, config, total)
    sizes = []
    for step in range(1, total + 1):
        batches = step_microbatches(data, Arrangement.of(config), step=step)
        tokens = [batch.ids.numel() for batch in batches]
        sizes.append((max(tokens), sum(tokens)))
    assert (found.microbatch_tokens, found.tokens) == max(sizes)
    assert found.step == sizes.index(max(sizes)) + 1


@pytest.mark.parametrize("when", ["evaluating", "rehearsing the largest step", "rehearsed"])
def test_killed_about_a_rehearsal_and_resumed_ends_with_the_same_bits(
    origin: tuple[Path, Path], tmp_path: Path, when: str
) -> None:
    settings: dict[str, Any] = {"eval_dataset": str(origin[1]), "sample_prompts": ("Why?",),
                                "sample_tokens": 2, "max_steps": 2}  # fmt: skip
    plain = Run(tmp_path / "plain", *origin, rehearsal="off", **settings)
    plain.go()
    killed = Run(tmp_path / "killed", *origin, rehearsal="on", **settings)

    def die(event: RunEvent) -> None:
        if event.message.startswith(when):
            raise Died

    with pytest.raises(Died):
        killed.go(emit=die)
    killed.go()
    assert_same_state(killed.state(), plain.state())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("39 GiB"), MemoryError("39 GiB")])
def test_memory_that_is_short_ends_the_run_before_its_first_step(
    origin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def backward(*_: Any) -> None:
        raise error

    monkeypatch.setattr(StepCompute, "_backward", backward)
    run = Run(tmp_path / "run", *origin, rehearsal="on")
    with pytest.raises(CannotFit, match="the largest of the run with .* 39 GiB. Lower batch_rows"):
        run.go()
    assert not run.metrics()


def test_a_volume_that_takes_no_commit_ends_the_run_before_its_first_step(
    origin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, count = TensorStore.commit, 0

    def commit_once(store: TensorStore, metadata: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:  # the first one is of the import
            raise OSError("the volume is read-only")
        return commit(store, metadata)

    monkeypatch.setattr(TensorStore, "commit", commit_once)
    run = Run(tmp_path / "run", *origin, rehearsal="on")
    with pytest.raises(OSError, match="read-only"):
        run.go()
    assert not run.metrics()
