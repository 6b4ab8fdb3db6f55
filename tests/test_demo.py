"""The demo tells the truth: each of its claims fails when it is not so."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deploy.demo.job import Ran
    from deploy.demo.report import Claim

STATE_BYTES, BUDGET_BYTES = 1000, 800


def good_run() -> "Ran":
    from deploy.demo.job import Ran

    links = {"nvme_read": {"payload_bytes": 1300}, "nvme_write": {"payload_bytes": 1000}}
    return Ran(
        job={"status": "succeeded"},
        steps=[{"step": step, "links": links} for step in (1, 2, 3)],
        evaluations=[{"full_valid_loss": 2.0}, {"full_valid_loss": 0.5}],
        messages=["going on after step 2, the last one that was committed"],
        killed_pid=10,
        killed_at=2,
        workers=[10, 11],
        base_bytes={10: 500, 11: 500},
        peak_bytes={10: 900, 11: 1300},
    )


def claims_of(ran: "Ran", *, state_bytes: int = STATE_BYTES, after: str = "yes") -> "list[Claim]":
    from deploy.demo.job import Recipe
    from deploy.demo.report import Question, claims

    recipe = Recipe(model="m", train=Path(), valid=Path(), max_steps=3, kill_at=2)
    questions = [Question(text="?", wanted="Yes", before="no", after=after)]
    return claims(ran, recipe, questions, state_bytes=state_bytes, budget_bytes=BUDGET_BYTES)


@pytest.fixture(autouse=True)
def _deploy_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))


def test_every_claim_holds_for_a_good_run() -> None:
    assert all(claim.holds for claim in claims_of(good_run()))


def set_to(name: str, value: Any) -> "Callable[[Ran], None]":
    return lambda ran: setattr(ran, name, value)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (set_to("job", {"status": "failed"}), "the job failed"),
        (lambda ran: ran.steps[1]["links"]["nvme_write"].update(payload_bytes=999), "every step"),
        (set_to("peak_bytes", {10: 900, 11: 1301}), "memory peaked"),
        (set_to("peak_bytes", {}), "memory peaked"),
        (set_to("killed_pid", 0), "was killed"),
        (set_to("workers", [10]), "was killed"),
        (set_to("messages", []), "resumed from a commit"),
        (lambda ran: ran.steps.pop(1), "each once"),
        (lambda ran: ran.steps.append(ran.steps[-1]), "each once"),
        (lambda ran: ran.evaluations.reverse(), "evaluation loss"),
        (set_to("evaluations", []), "no evaluation"),
    ],
)
def test_claim_fails_when_it_is_not_so(spoil: "Callable[[Ran], object]", text: str) -> None:
    ran = good_run()
    spoil(ran)
    assert [claim.text for claim in claims_of(ran) if not claim.holds and text in claim.text]


def test_answers_that_are_no_better_and_state_that_fits_fail_their_claims() -> None:
    assert not claims_of(good_run(), after="no")[-1].holds
    assert not claims_of(good_run(), state_bytes=BUDGET_BYTES)[1].holds
