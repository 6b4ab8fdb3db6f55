"""What people want to know of a step, computed from its report. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW_STEPS = 10  # rates are means over the last steps, so that one slow commit does not show
REWARDS = ("reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy")  # of preferences
QUIET_SHARE = 0.1  # below that share of a step, a wait is not worth naming


class Rates:
    """Remembers the last steps of a run; gives tokens per second and the seconds that are left."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW_STEPS)
        self.newest: dict[str, Any] = {}  # what the last `add` gave

    def add(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step report in; the fields that the job's `engine` object shows."""
        self._steps.append((float(report["step_seconds"]), int(report["num_tokens"])))
        seconds = sum(step[0] for step in self._steps)
        tokens = sum(step[1] for step in self._steps)
        step_seconds = seconds / len(self._steps)
        left = report["total_steps"] - report["step"]
        self.newest = {
            "step": report["step"],
            "total_steps": report["total_steps"],
            "epoch": report["epoch"],
            "loss": report["loss"],
            "token_accuracy": report["token_accuracy"],
            "tokens_per_s": round(tokens / max(seconds, 1e-9), 3),
            "step_time_s": round(step_seconds, 4),
            "eta_s": round(left * step_seconds, 1),
            "bottleneck": bottleneck(report),
            **{name: report[name] for name in REWARDS if name in report},
        }
        return self.newest


def bottleneck(report: Mapping[str, Any]) -> str:
    """What held the step up, in a sentence with its share of the step."""
    waits = {
        "waiting for layers to be read": report["stall_read_seconds"],
        "waiting for layers to be written back": report["stall_write_seconds"],
        "waiting for the commit": report["commit_seconds"],
    }
    step_seconds = max(float(report["step_seconds"]), 1e-9)
    what, seconds = max(waits.items(), key=lambda item: item[1])
    share = min(1.0, seconds / step_seconds)
    if share < QUIET_SHARE:
        total = min(1.0, sum(waits.values()) / step_seconds)
        return f"compute; layers arrive in time ({100 * total:.0f} % of the step is waiting)"
    return f"{what}, {100 * share:.0f} % of the step"


def public_metrics(report: Mapping[str, Any], rates: Mapping[str, Any]) -> dict[str, Any]:
    """A step report as the data of a metrics event: the names of OpenAI first, then all of it."""
    named = {
        "step": report["step"],
        "total_steps": report["total_steps"],
        "train_loss": report["loss"],
        "train_mean_token_accuracy": report["token_accuracy"],
    }
    return {**named, **report, **rates}
