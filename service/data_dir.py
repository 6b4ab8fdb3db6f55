"""Whose a data directory is: one daemon's at a time, which can write and read it."""

from pathlib import Path

from .lockfile import LockFile, LockHeld


class DaemonRunning(RuntimeError):
    """Another daemon uses the data directory."""


class DataDirUnusable(RuntimeError):
    """The data directory cannot be written, or what lies in it is not a daemon's."""


def take_data_dir(data_dir: Path) -> LockFile:
    """Lock the directory for this process, or DaemonRunning with the holder's pid."""
    try:
        return LockFile(data_dir / "lock")
    except LockHeld as held:
        raise DaemonRunning(
            f"process {held.pid} already serves {data_dir}; stop it, or name another data_dir"
        ) from None
