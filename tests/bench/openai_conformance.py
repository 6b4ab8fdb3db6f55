"""The points of `openai_checks` with several versions of the `openai` client, side by side.

Each `--python` is an interpreter whose environment holds one version. Prints a table; the exit
status is 1 when a point did not hold.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import openai_checks
from headrace.service.auth import Tokens
from running_daemon import running_daemon
from tiny import make_tiny_llama


def main() -> int:
    """One daemon with a tiny model, and each client in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, action="append", default=[], help="repeatable")
    parser.add_argument("--json", type=Path, help="also write the result there")
    arguments = parser.parse_args()
    pythons = arguments.python or [Path(sys.executable)]
    with tempfile.TemporaryDirectory() as home:
        token = Tokens(Path(home, "data", "tokens.json")).create("conformance")
        make_tiny_llama(Path(home, "models", "tiny"), tied=True, seed=3, layers=2)
        with running_daemon(Path(home, "data"), Path(home, "models"), ()) as daemon:
            results = [run(python, daemon.url, token) for python in pythons]
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    show(results)
    return 1 if any(fault for result in results for fault in result["points"].values()) else 0


def run(python: Path, url: str, token: str) -> dict[str, Any]:
    """What one version found."""
    command = [str(python), openai_checks.__file__, url]
    environment = {"PATH": os.environ["PATH"], "HEADRACE_TOKEN": token}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def show(results: list[dict[str, Any]]) -> None:
    """The table, and what was wrong below it."""
    versions = [result["openai"] for result in results]
    width = max(map(len, openai_checks.POINTS))
    print(f"{'openai':{width}}", *(f"{version:>8}" for version in versions))
    for name in openai_checks.POINTS:
        faults = [result["points"][name] for result in results]
        print(f"{name:{width}}", *(f"{'no' if fault else 'yes':>8}" for fault in faults))
        for version, fault in zip(versions, faults, strict=True):
            if fault:
                print(f"    {version}: {fault}")


if __name__ == "__main__":
    sys.exit(main())
