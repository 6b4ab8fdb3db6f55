"""A whole daemon with a scripted engine behind the real app, for tests that look from outside."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes_daemon import serving
from headrace.service.daemon import Daemon
from headrace.service.settings import Settings
from headrace.service.worker import WorkerOptions
from tiny import make_tiny_llama

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"How many sluices are open at mill {i}?"},
            {"role": "assistant", "content": f"{i % 7} of them, and the wheel turns."},
        ]
    }
    for i in range(400)
]


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens and what it is."""

    url: str
    daemon: Daemon
    home: Path

    @property
    def rows(self) -> Path:
        """A file of training rows."""
        return self.home / "rows.jsonl"

    def script(self, **script: Any) -> None:
        """What runs from now on do; see fake_engine."""
        (self.home / "data" / "script.json").write_text(json.dumps(script))


@contextmanager
def served_daemon(home: Path, *, script: dict[str, Any]) -> Iterator[Served]:
    """The daemon on a free port of this machine, with one real, tiny model called `tiny`."""
    make_tiny_llama(home / "models" / "tiny", tied=True, seed=3)
    (home / "data").mkdir()
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings = Settings(data_dir=home / "data", models_dir=(home / "models",), device="cpu")
    options = WorkerOptions(data_dir=settings.data_dir, engine="fake_engine:run_job")
    daemon = Daemon(settings, worker=options, prepare="fake_engine:prepare")
    (home / "data" / "script.json").write_text(json.dumps(script))
    with serving(daemon) as url:
        yield Served(url, daemon, home)
