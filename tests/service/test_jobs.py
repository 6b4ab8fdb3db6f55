import pytest

from fakes_daemon import some_job
from headrace.service.jobs import MOVES, STATUSES, TERMINAL, IllegalMove, Status, check_move


@pytest.mark.parametrize("status", STATUSES)
def test_a_job_that_has_ended_never_moves_again(status: Status) -> None:
    assert (not MOVES[status]) == (status in TERMINAL)


def test_every_job_can_be_cancelled_until_it_has_ended() -> None:
    for status in set(STATUSES) - TERMINAL:
        check_move("ftjob-1", status, "cancelled")


def test_a_paused_job_goes_through_the_queue_again() -> None:
    with pytest.raises(IllegalMove, match="ftjob-1 is paused and cannot become running"):
        check_move("ftjob-1", "paused", "running")


def test_every_move_leads_to_a_known_status() -> None:
    assert set(MOVES) == set(STATUSES)
    assert set().union(*MOVES.values()) <= set(STATUSES)


def test_only_ended_jobs_are_terminal() -> None:
    assert [some_job(status=s).is_terminal for s in ("queued", "failed")] == [False, True]
