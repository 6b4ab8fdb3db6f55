"""`headrace fsck` lists the commits of a store, finds damage, and goes back when told to."""

import json
from pathlib import Path

import pytest

from command import run_json
from headrace.service.__main__ import main
from headrace.service.cli.output import Exit
from headrace.storage import HostArena, TensorStore, VolumeConfig
from store_cases import fill, payload, small_records, write_all

RECORDS = small_records(2)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A store `job` of three commits, the first one kept, with a bad byte in the last."""
    path = tmp_path / "volume"
    path.mkdir()
    config = VolumeConfig(path=path)
    with (
        HostArena(1 << 20) as arena,
        TensorStore.create(
            [config], RECORDS, name="job", reserve_bytes=0, keep_generations=1
        ) as store,
    ):
        slot = arena.carve(1 << 19)
        for value in (1, 2, 3):
            store.begin(value * 10)
            write_all(store, slot, value)
            store.commit({})
            if value == 1:
                store.keep(1)
        fill(slot, RECORDS[1], 3)
        wanted = payload(slot, RECORDS[1])[:1000]
    data = path / "job" / "data.bin"
    content = bytearray(data.read_bytes())
    content[content.index(wanted)] ^= 1
    data.write_bytes(content)
    return path


def test_fsck_lists_commits_and_names_damage(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, [found] = run_json(capsys, "fsck", "--volume", volume)
    assert code == Exit.FAILED
    assert "layers.1" in found["problems"][0]
    listed = [
        (one["generation"], one["step"], one["live"], one["kept"]) for one in found["commits"]
    ]
    assert listed == [(3, 30, True, False), (2, 20, False, False), (1, 10, False, True)]
    assert [bool(one["problems"]) for one in found["commits"]] == [True, False, False]


def test_fsck_falls_back_to_a_kept_commit(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, [found] = run_json(capsys, "fsck", "--volume", volume, "--fall-back-to", "1")
    assert (code, found["generation"], found["step"]) == (Exit.OK, 4, 10)
    code, [found] = run_json(capsys, "fsck", "--volume", volume)
    assert (code, found["problems"]) == (Exit.OK, [])


def test_fsck_does_not_fall_back_to_what_is_damaged(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fsck", "--volume", str(volume), "--fall-back-to", "3", "--json"])
    assert ended.value.code == Exit.FAILED
    assert "commit 3 is not whole" in json.loads(capsys.readouterr().err)["error"]["message"]


def test_quick_fsck_reads_no_content(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, [found] = run_json(capsys, "fsck", "--volume", volume, "--quick")
    assert (code, found["problems"]) == (Exit.OK, [])


def test_a_store_that_a_run_holds_open_is_not_said_to_be_missing(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TensorStore.open([VolumeConfig(path=volume)], name="job"), pytest.raises(SystemExit):
        main(["fsck", "--volume", str(volume), "--text"])
    said = capsys.readouterr().out
    assert "is in use by process" in said and "no training state" not in said


def test_fsck_of_a_data_directory_that_is_not_there_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fsck", "--data-dir", str(tmp_path / "mistyped")])
    assert ended.value.code == Exit.USAGE
    assert "mistyped/volumes is not a directory" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
