"""What several tests of the service start from."""

from collections.abc import Iterator

import pytest

from scripted_daemon import ScriptedDaemon, scripted_daemon


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDaemon]:
    """A daemon of given answers, which commands find by themselves."""
    with scripted_daemon() as running:
        monkeypatch.setenv("HEADRACE_URL", running.url)
        yield running
