"""The trial of the image says what it changed, and no finding is good that was not wanted."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _deploy_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))


SERVICE = {"ulimits": {"memlock": {"soft": -1, "hard": -1}, "nofile": {"soft": 9, "hard": 9}}}


def test_limits_that_the_machine_has_not_are_lowered_and_told() -> None:
    from deploy.try_image.adapt import adapt

    hard = {"memlock": 100, "nofile": 5, "nproc": 7}
    found = adapt(SERVICE, name="cpu", hard_limits=hard, environment={})
    limits = found.overrides["services"]["cpu"]["ulimits"]
    assert {name: limit["hard"] for name, limit in limits.items()} == hard
    assert found.differences == [
        "ulimit memlock 100 instead of -1",
        "ulimit nofile 5 instead of 9",
    ]


def test_a_machine_without_limits_changes_nothing() -> None:
    from deploy.try_image.adapt import adapt

    hard = {"memlock": -1, "nofile": 10, "nproc": -1}
    found = adapt(SERVICE, name="cpu", hard_limits=hard, environment={})
    assert found.overrides == {"services": {"cpu": {}}} and not found.differences


def test_settings_of_the_trial_are_told() -> None:
    from deploy.try_image.adapt import adapt

    found = adapt({}, name="cpu", hard_limits={}, environment={"HEADRACE_HOST_BYTES": "5"})
    assert found.overrides["services"]["cpu"]["environment"] == {"HEADRACE_HOST_BYTES": "5"}
    assert len(found.differences) == 1 and "HEADRACE_HOST_BYTES=5" in found.differences[0]


@pytest.mark.parametrize(("text", "wanted"), [("15m", 900), ("1m30s", 90), ("2h", 7200)])
def test_a_duration_of_compose_is_read(text: str, wanted: int) -> None:
    from deploy.try_image.adapt import seconds

    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "15", "1 m", "forever"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    from deploy.try_image.adapt import seconds

    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)


def test_one_bad_finding_spoils_the_trial_and_none_is_no_success() -> None:
    from deploy.try_image.trial import Findings

    findings = Findings()
    assert not findings.good
    findings.add("a", True, 1)
    assert findings.good
    findings.add("b", False, 2)
    assert not findings.good


def test_the_trial_starts_a_service_that_is_shipped() -> None:
    from deploy.try_image.__main__ import shipped_service
    from deploy.try_image.adapt import seconds

    assert seconds(shipped_service()["stop_grace_period"]) > 60
