"""How soon a daemon answers after its start, with its files in the page cache and without.

Starts `headrace serve` on an empty data directory, in turn warm and cold: before a cold start every
file of the interpreter, its packages and this checkout is dropped from the page cache, which needs
no privilege as long as no other process has it mapped. Prints one JSON object; the exit status is
1 when /livez took longer than `--limit` seconds at the slowest cold start. `app_…` is the time
until the first answer that waits for the app, /status.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import httpx2

CHECKOUT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds until a start has failed


def files_of_a_start() -> Iterator[Path]:
    """Whatever a start might read: the interpreter, its library, the packages, the product."""
    known = sysconfig.get_paths()
    roots = {Path(known[name]) for name in ("stdlib", "purelib", "platlib")}
    yield Path(os.path.realpath(sys.executable))
    for root in (*roots, *(CHECKOUT / room for room in ("engine", "service", "storage"))):
        yield from (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def drop_from_cache(paths: Iterator[Path]) -> int:
    """Have the kernel forget the clean pages of files; bytes that were asked for."""
    asked = 0
    for path in paths:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                asked += os.fstat(handle).st_size
            finally:
                os.close(handle)
    return asked


def start_once() -> tuple[float, float]:
    """Seconds from the start of the process to the first answers of /livez and of the app."""
    with tempfile.TemporaryDirectory(prefix="headrace-start-") as home:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT / ".src"),
            "HEADRACE_DATA_DIR": f"{home}/data",
            "HEADRACE_MODELS_DIR": home,
            "HEADRACE_PORT": str(port),
            "HEADRACE_DEVICE": "cpu",
        }
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "headrace.service", "serve"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as daemon:
            try:
                alive = _first_answer(port, daemon, started)
                httpx2.get(f"http://127.0.0.1:{port}/status", timeout=PATIENCE).raise_for_status()
                return alive, time.perf_counter() - started
            finally:
                daemon.terminate()


def _first_answer(port: int, daemon: subprocess.Popen[bytes], started: float) -> float:
    while (taken := time.perf_counter() - started) < PATIENCE:
        if daemon.poll() is not None:
            raise SystemExit(f"the daemon ended with status {daemon.returncode} at its start")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            httpx2.get(f"http://127.0.0.1:{port}/livez", timeout=10).raise_for_status()
            return time.perf_counter() - started
        time.sleep(0.01)
    raise SystemExit(f"no answer of /livez within {taken:.0f} s")


def main() -> int:
    """Start by turns; 1 when a cold start was too slow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="warm and cold starts, each")
    parser.add_argument("--limit", type=float, default=2.0, help="of the slowest cold /livez")
    arguments = parser.parse_args()
    warm: list[tuple[float, float]] = []
    cold: list[tuple[float, float]] = []
    dropped = 0
    start_once()  # compiles what is not compiled yet
    for _ in range(arguments.rounds):
        warm.append(start_once())
        dropped = drop_from_cache(files_of_a_start())
        cold.append(start_once())
    slowest = max(alive for alive, _ in cold)
    result = {
        "rounds": arguments.rounds,
        "warm_seconds": [round(alive, 3) for alive, _ in warm],
        "cold_seconds": [round(alive, 3) for alive, _ in cold],
        "warm_median": round(median(alive for alive, _ in warm), 3),
        "cold_median": round(median(alive for alive, _ in cold), 3),
        "cold_slowest": round(slowest, 3),
        "app_warm_median": round(median(app for _, app in warm), 3),
        "app_cold_median": round(median(app for _, app in cold), 3),
        "dropped_mb": round(dropped / 1e6),
        "load_before": os.getloadavg()[0],
        "cpus": os.cpu_count(),
    }
    print(json.dumps(result, indent=1))
    return int(slowest > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
