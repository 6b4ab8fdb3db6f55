import os
import subprocess
from pathlib import Path

import pytest

from headrace.service.whole_file import discard, in_place_of, write_whole


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


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_made_beside_takes_the_place_or_is_gone(tmp_path: Path, kind: str) -> None:
    def make(part: Path) -> None:
        if kind == "file":
            part.write_text("a")
        else:
            part.mkdir()
            (part / "inner").touch()

    target = tmp_path / "new" / "a[b]*.gguf"
    with pytest.raises(ValueError), in_place_of(target) as part:
        make(part)
        raise ValueError
    assert list(target.parent.iterdir()) == []
    with in_place_of(target) as part:
        make(part)
        assert not target.exists()
    assert list(target.parent.iterdir()) == [target]


def test_what_a_killed_process_left_goes_and_what_a_living_one_makes_stays(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, living, another = (
        tmp_path / name
        for name in (f".a.part-{gone.pid}", f".a.part-{os.getppid()}", f".b.part-{gone.pid}")
    )
    own = tmp_path / f".a.part-{os.getpid()}"  # of a process before us that had our id
    own.mkdir()
    dead.mkdir()
    (dead / "half").touch()
    living.touch()
    another.touch()
    with in_place_of(tmp_path / "a") as part:
        part.touch()
    assert set(tmp_path.iterdir()) == {living, another, tmp_path / "a"}


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "kept").touch()
    (tmp_path / "link").symlink_to(folder)
    for name in ("link", "nothing"):
        discard(tmp_path / name)
    assert list(tmp_path.iterdir()) == [folder] and (folder / "kept").exists()
