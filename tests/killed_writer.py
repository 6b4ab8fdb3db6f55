"""Write and commit in a child process, kill it at a random moment, look at what is left; repeat.

Run as a program: `killed_writer.py VOLUME ROUNDS SEED`. The store "job" is there already. Prints a
line for each round: the last step whose commit returned, the step found, and "whole" or "broken".
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from headrace.storage import HostArena, TensorStore, VolumeConfig
from store_cases import content_of, expected, write_all


def write_for_ever(volume: VolumeConfig, pipe: int) -> None:
    """Commit step after step, and say so through the pipe."""
    with HostArena(1 << 20) as arena, TensorStore.open([volume], name="job") as store:
        slot = arena.carve(1 << 19)
        step = store.step
        while True:
            step += 1
            store.begin(step)
            write_all(store, slot, step)
            store.commit({"step": step})
            os.write(pipe, b"%d\n" % step)


def one_round(volume: VolumeConfig, delay_seconds: float) -> int:
    """Start the child, kill it `delay_seconds` after its first commit; its last commit."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_for_ever(volume, writer)
    os.close(writer)
    with open(reader, "rb") as lines:
        first = lines.readline()
        time.sleep(delay_seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return int([first, *lines.readlines()][-1])


def look(volume: VolumeConfig) -> tuple[int, bool]:
    """The step found, and whether all of it is there."""
    with HostArena(1 << 20) as arena, TensorStore.open([volume], name="job") as store:
        slot = arena.carve(1 << 19)
        found = content_of(store, slot)
        whole = found == expected(list(store.records.values()), slot, store.step)
        return store.step, whole and store.metadata == {"step": store.step}


def main() -> None:
    """See the top of the file."""
    volume = VolumeConfig(path=Path(sys.argv[1]))
    chance = random.Random(int(sys.argv[3]))
    for _ in range(int(sys.argv[2])):
        returned = one_round(volume, chance.random() / 20)
        found, whole = look(volume)
        print(returned, found, "whole" if whole else "broken", flush=True)


if __name__ == "__main__":
    main()
