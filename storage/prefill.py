"""Writing every extent of a new store once, so that later writes meet space that was written."""

import logging
import time
from concurrent.futures import Future

from .drives import DriveSet
from .future import wait_for
from .layout import BLOCK_BYTES
from .operation import Drive
from .volume import page_buffer

log = logging.getLogger(__name__)


def fill_with_zeros(drives: DriveSet) -> None:
    """Write zeros behind the commit bodies of every volume, all volumes at once, and sync.

    The bytes count as written (padding: they are nobody's payload). On an error the drives are
    closed, and the store stays one that was never committed.
    """
    zeros = memoryview(page_buffer(BLOCK_BYTES))
    start = time.monotonic()
    try:
        outcomes = [
            _write(drive, offset, zeros[: min(BLOCK_BYTES, stop - offset)])
            for drive, stop in zip(drives.drives, drives.layout.file_bytes, strict=True)
            for offset in range(drives.layout.body_offset(2), stop, BLOCK_BYTES)
        ]
        for outcome in outcomes:
            wait_for(outcome, "prefilling", drives.patience)
        for drive in drives.drives:
            wait_for(drive.queue.run("sync", drive.volume.sync), "prefilling", drives.patience)
    except BaseException:
        drives.close()
        raise
    total, seconds = sum(drives.written_bytes()), time.monotonic() - start
    log.info("store %s: %d bytes prefilled in %.1f s", drives.manifest.name, total, seconds)


def _write(drive: Drive, offset: int, zeros: memoryview) -> Future[None]:
    return drive.queue.run("write", lambda: drive.volume.write(offset, zeros), len(zeros))
