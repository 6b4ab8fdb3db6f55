"""Kill a process that writes a real store, at random moments, and look at what is left each time.

Every round must leave, whole, the last commit that returned or the one that was in flight. Prints
one JSON object; the exit status is 1 when a round did not hold.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bench.inputs import box
from headrace.storage import HostArena, TensorStore, VolumeConfig
from store_cases import small_records, write_all

PROGRAM = Path(__file__).parents[1] / "killed_writer.py"


def main() -> int:
    """Make the store, kill its writer `--rounds` times, count what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--records", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_store(arguments.volume, arguments.records)
    start = time.monotonic()
    try:
        found = sweep(arguments.volume, arguments.rounds, arguments.seed)
    finally:
        TensorStore.remove([VolumeConfig(path=arguments.volume)], name="job")
    held = found["broken"] == found["lost"] == 0 and found["rounds"] == arguments.rounds
    seconds = round(time.monotonic() - start, 1)
    print(
        json.dumps(
            {"held": held, **found, "seconds": seconds, "seed": arguments.seed, "box": box()}
        )
    )
    return 0 if held else 1


def make_store(volume: Path, num_records: int) -> None:
    """A store with a first commit."""
    config = VolumeConfig(path=volume)
    records = small_records(num_records)
    with (
        HostArena(1 << 20) as arena,
        TensorStore.create([config], records, name="job", reserve_bytes=0) as store,
    ):
        store.begin(0)
        write_all(store, arena.carve(1 << 19), 0)
        store.commit({"step": 0})


def sweep(volume: Path, rounds: int, seed: int) -> dict[str, int]:
    """Rounds by what they left: the commit that returned, or the one in flight."""
    command = [sys.executable, str(PROGRAM), str(volume), str(rounds), str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    counted: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        returned, found, state = line.split()
        counted["rounds"] += 1
        counted["commits"] = int(found)
        ahead = int(found) - int(returned)
        counted["broken"] += state != "whole"
        counted["lost"] += ahead not in (0, 1)
        counted["last_that_returned"] += ahead == 0
        counted["one_in_flight"] += ahead == 1
    return dict(counted)


if __name__ == "__main__":
    sys.exit(main())
