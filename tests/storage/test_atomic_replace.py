"""A small file is replaced whole, though several write it at once and one is killed between."""

import os
import signal
from pathlib import Path
from threading import Thread

import pytest

from headrace.storage import replace_file


def test_several_at_once_all_succeed_and_one_of_them_stays(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    errors: list[BaseException] = []

    def write(letter: str) -> None:
        try:
            for _ in range(30):
                replace_file(path, letter.encode() * 1000)
                assert len(set(path.read_bytes())) == 1
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(path.read_bytes()) == 1000
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_one_has_left_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    replace_file(path, b"old")
    child = os.fork()
    if child == 0:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        replace_file(path, b"of the killed one, which is longer")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_drive_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.json"
    replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left.*figures.json"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
