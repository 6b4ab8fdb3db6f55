"""What a machine changes of the compose file when it is tried there: limits, budgets, nothing else.

Pure, so that what a trial did differently from what users run is known and printed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GRACE = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A compose file to be read after the shipped one, and its differences in words."""

    overrides: dict[str, Any]
    differences: list[str]


def adapt(
    service: Mapping[str, Any],
    *,
    name: str,
    hard_limits: Mapping[str, int],
    environment: Mapping[str, str],
) -> Adapted:
    """Lower what the service asks for beyond the hard limits of this machine (-1: none)."""
    differences = [f"{key}={value}, to make the state stream" for key, value in environment.items()]
    ulimits: dict[str, dict[str, int]] = {}
    for limit, hard in hard_limits.items():
        if hard < 0:
            continue
        wanted = service.get("ulimits", {}).get(limit)
        if wanted is None:
            ulimits[limit] = {"soft": hard, "hard": hard}  # the engine's own default is higher
        elif wanted["hard"] < 0 or wanted["hard"] > hard:
            ulimits[limit] = {"soft": hard, "hard": hard}
            differences.append(f"ulimit {limit} {hard} instead of {wanted['hard']}")
    changed: dict[str, Any] = {"ulimits": ulimits} if ulimits else {}
    if environment:
        changed["environment"] = dict(environment)
    return Adapted(overrides={"services": {name: changed}}, differences=differences)


def seconds(duration: str) -> int:
    """A duration of compose, such as `1m30s`. ValueError for anything else."""
    found = GRACE.fullmatch(duration)
    if not duration or not found:
        raise ValueError(f"{duration!r} is not a duration such as 15m or 1m30s")
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + rest
