"""Files of measurements: none outlives its process for longer than until the next measurement."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.storage import NoSpace
from headrace.storage.working_file import remove_leftovers, working_file

_KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.storage.working_file import working_file
with working_file(Path(sys.argv[1]), "calibrate", 1 << 20):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_has_its_room_and_goes_with_the_block(tmp_path: Path) -> None:
    with working_file(tmp_path, "calibrate", 1 << 20) as path:
        assert path.parent == tmp_path and path.stat().st_size == 1 << 20
        assert path.stat().st_blocks * 512 >= 1 << 20
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with working_file(tmp_path, "bench", 4096) as other:
        assert len(list(tmp_path.iterdir())) == 2, "that of another purpose stays"
    with working_file(tmp_path, "calibrate", 4096) as path:
        assert list(tmp_path.iterdir()) == [path] and other != path


def test_one_that_is_in_use_stays(tmp_path: Path) -> None:
    with working_file(tmp_path, "calibrate", 4096) as first:
        with working_file(tmp_path, "calibrate", 4096) as second:
            remove_leftovers(tmp_path, "calibrate")
            assert first.exists() and second.exists() and first != second


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.touch()
    (tmp_path / ".headrace-calibrate-1").symlink_to(target)
    remove_leftovers(tmp_path, "calibrate")
    assert len(list(tmp_path.iterdir())) == 2


def test_without_room_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match="bytes are free"):
        with working_file(tmp_path, "calibrate", 1 << 43):
            pass
    assert list(tmp_path.iterdir()) == []
