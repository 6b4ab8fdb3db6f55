"""One step of a store, for a tracer to disturb: read, write, commit, and say how it went.

Run as a program: `strace_writer.py VOLUME STEP`. Prints one JSON object. Imports no torch, so that
it starts quickly.
"""

import json
import sys
from pathlib import Path

from headrace.storage import drives
from headrace.storage.config import VolumeConfig
from headrace.storage.errors import IoFailed, StoreError
from headrace.storage.store import TensorStore
from headrace.storage.volume import page_buffer

SLOT_BYTES = 1 << 16


class PageSlot:
    """Page-aligned memory as the store wants it."""

    on_device = False
    nbytes = SLOT_BYTES

    def __init__(self) -> None:
        self.view = memoryview(page_buffer(SLOT_BYTES))
        self.holds = 0

    def hold(self) -> None:
        """Count."""
        self.holds += 1

    def release(self) -> None:
        """Count."""
        self.holds -= 1

    def quarantine(self, why: str) -> None:
        """Not looked at here."""

    def check_usable(self) -> None:
        """Always."""


def fill(slot: PageSlot, index: int, step: int) -> None:
    """Content that is different for every record and step."""
    slot.view[:] = bytes([index * 16 + step]) * SLOT_BYTES


def one_step(store: TensorStore, slot: PageSlot, step: int) -> None:
    """Read and write every record, then commit."""
    store.begin(step)
    for index, name in enumerate(store.records):
        store.read_into(name, slot).result()
        fill(slot, index, step)
        store.write_from(name, slot).result()
    store.commit({"step": step})


def main() -> None:
    """See the top of the file."""
    drives.NUM_THREADS = 1  # a tracer counts calls thread by thread
    volume, step = VolumeConfig(path=Path(sys.argv[1])), int(sys.argv[2])
    slot = PageSlot()
    outcome: dict[str, object] = {"error": None}
    try:
        with TensorStore.open([volume], name="job", io_timeout_seconds=2) as store:
            try:
                one_step(store, slot, step)
            finally:
                outcome["read_only"] = store.status().read_only
    except StoreError as error:
        outcome["error"] = type(error).__name__
        outcome["message"] = str(error)
        if isinstance(error, IoFailed):
            outcome["place"] = [error.volume, error.operation, error.offset]
    outcome["held_slots"] = slot.holds
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
