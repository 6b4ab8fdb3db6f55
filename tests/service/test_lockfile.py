"""A lock names its holder and ends with it."""

import os
from pathlib import Path

import pytest

from headrace.service.lockfile import LockFile, LockHeld, is_free


def test_lock_names_its_holder_and_falls_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with LockFile(path):
        assert not is_free(path)
        with pytest.raises(LockHeld, match=str(os.getpid())):
            LockFile(path)
    assert is_free(path)
    LockFile(path).close()
