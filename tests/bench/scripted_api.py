"""The daemon over HTTP with a scripted engine in its worker: what `viewers` looks at.

`python -m bench.scripted_api DATA_DIR MODELS_DIR` prints its URL as JSON, as `headrace serve` does.
The script of the engine is `script.json` in the data directory (`tests/fake_engine.py`).
"""

import json
import sys
from pathlib import Path

from headrace.service.app import create_app
from headrace.service.daemon import Daemon
from headrace.service.server import address, listen, run
from headrace.service.settings import Settings
from headrace.service.worker import WorkerOptions


def main() -> None:
    """Serve until a signal ends it."""
    data_dir, models_dir = map(Path, sys.argv[1:3])
    settings = Settings(data_dir=data_dir, models_dir=(models_dir,), device="cpu")
    options = WorkerOptions(data_dir=data_dir, engine="fake_engine:run_job")
    daemon = Daemon(settings, worker=options, prepare="fake_engine:prepare")
    with listen("127.0.0.1", 0) as sock:
        url = address(sock)
        run(create_app(daemon), sock, on_ready=lambda: print(json.dumps({"url": url}), flush=True))


if __name__ == "__main__":
    main()
