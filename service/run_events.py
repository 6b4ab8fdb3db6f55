"""The last event of a run, durable: how it ended, in the words of the log and of the journal."""

from headrace.engine import OUTCOME_OF, RunEvent, RunResult, StopReason

from .asked_as import message_of


def result_event(result: RunResult) -> RunEvent:
    """The run came to an end of its own, or was stopped at a step."""
    message = f"{result.outcome} at step {result.step} of {result.total_steps}"
    return RunEvent(
        type="result", message=message, step=result.step, data=result.to_dict(), durable=True
    )


def stopped_early(reason: StopReason) -> RunEvent:
    """The run was stopped before its first step of this process."""
    outcome = OUTCOME_OF[reason]
    return RunEvent(
        type="result",
        message=f"{outcome} before the run began",
        data={"outcome": outcome},
        durable=True,
    )


def out_of_space_event(error: BaseException) -> RunEvent:
    """The drive is full: the last commit stays, and the run goes on when it is resumed."""
    why = message_of(error)
    return RunEvent(
        type="result",
        level="warn",
        message=f"paused, since the drive is full: {why}. Free some space and resume.",
        data={"outcome": "paused"},
        durable=True,
    )


def failure_event(error: BaseException) -> RunEvent:
    """The run failed with that exception."""
    return RunEvent(
        type="result",
        level="error",
        message=message_of(error),
        data={
            "outcome": "failed",
            "error": {"type": type(error).__name__, "message": message_of(error)},
        },
        durable=True,
    )
