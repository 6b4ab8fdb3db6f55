"""State in host memory in two versions: a wrong guess leaves nothing behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import run as run_module
from headrace.engine.host_home import HostHome
from headrace.engine.plan import Plan
from headrace.storage import HostArena
from runs import Run, assert_same_state
from tiny import make_tiny_llama


def test_a_guess_becomes_the_state_only_when_it_was_right() -> None:
    with HostArena(2 * 4096) as arena:
        first, second = arena.carve(4096), arena.carve(4096)
        home = HostHome([first, second])
        assert home.take_update(is_guess=True) is second
        assert (home.now, home.newest) == (first, second)
        home.settle(right=False)
        assert (home.now, home.newest) == (first, first)
        home.take_update(is_guess=True)
        home.settle(right=True)
        assert (home.now, home.newest) == (second, second)


def test_the_second_try_replaces_the_guess() -> None:
    with HostArena(2 * 4096) as arena:
        first, second = arena.carve(4096), arena.carve(4096)
        home = HostHome([first, second])
        home.take_update(is_guess=True)
        assert home.take_update(is_guess=False) is second
        home.settle(right=True)
        assert home.now is second


def test_one_version_is_updated_in_place() -> None:
    with HostArena(4096) as arena:
        only = arena.carve(4096)
        home = HostHome([only])
        assert home.take_update(is_guess=False) is only
        assert home.now is home.newest is only


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_bets_won_and_lost_and_steps_without_a_bet_give_the_same_bits(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit lies between the norms, so some steps clip; after one that does, none bets."""
    model = make_tiny_llama(tmp_path / "model", tied=False, seed=1)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30, 12, 21, 8, 26, 14, 11], vocab=384)
    common: dict[str, Any] = {"max_steps": 10, "learning_rate": 1e-3, "state_tier": "host"}
    free = Run(tmp_path / "free", model, dataset, **common, max_grad_norm=1e9)
    free.go()
    norms = sorted(m["grad_norm"] for m in free.metrics())
    common |= {"max_grad_norm": norms[3], "commit_every_steps": 4}
    plain = Run(tmp_path / "plain", model, dataset, **common, clip_way="serial")
    plain.go()

    made = run_module.plan_run

    def betting(*args: Any, **kwargs: Any) -> tuple[Plan, Any]:
        plan, report = made(*args, **kwargs)
        return replace(plan, clip_way="auto"), report

    monkeypatch.setattr(run_module, "plan_run", betting)
    auto = Run(
        tmp_path / "auto", model, dataset, **common, clip_way="speculative",
        optimizer_host_share=share,
    )  # fmt: skip
    auto.go()
    clipped = [m["clip_factor"] < 1 for m in auto.metrics()]
    assert {(a, b) for a, b in zip(clipped, clipped[1:], strict=False)} >= {
        (False, True), (True, False), (True, True)
    }  # fmt: skip
    assert [m["loss"] for m in auto.metrics()] == [m["loss"] for m in plain.metrics()]
    assert_same_state(auto.state(), plain.state())
