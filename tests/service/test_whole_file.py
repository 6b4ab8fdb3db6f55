from pathlib import Path

import pytest

from headrace.service.whole_file import write_whole


def test_a_file_that_was_not_written_whole_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")
    with pytest.raises(ValueError), write_whole(path) as file:
        file.write("half of the new")
        raise ValueError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_whole_file_takes_the_place_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    with write_whole(path, mode=0o600) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
