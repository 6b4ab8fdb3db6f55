import math
import os
from pathlib import Path

import pytest

from headrace.engine import RunEvent
from headrace.service import event_log
from headrace.service.event_log import EventLog, EventReader


def message(text: str) -> RunEvent:
    return RunEvent(type="message", message=text)


def write(path: Path, *texts: str) -> None:
    with EventLog(path) as log:
        for text in texts:
            log.append(message(text))


def seen(reader: EventReader) -> list[tuple[int, str]]:
    return [(event.seq, event.message) for event in reader.read()]


def test_numbers_go_on_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, "a", "b")
    write(path, "c")
    assert seen(EventReader(path)) == [(1, "a"), (2, "b"), (3, "c")]


def test_numbers_go_on_after_those_the_reader_kept_when_the_file_has_lost_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    write(path, "a")
    with EventLog(path, after_seq=9) as log:
        assert log.append(message("b")) == 10


@pytest.mark.parametrize(
    "tail", [b'{"seq": 3, "ty', b"\0" * 600, b"\0" * 9 + b"\n", b'{"seq": 3}\n', b"[]\n"]
)
def test_torn_end_is_never_read_and_cut_by_the_next_writer(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "events.jsonl"
    write(path, "a", "b")
    with path.open("ab") as file:
        file.write(tail)
    reader = EventReader(path)
    assert seen(reader) == [(1, "a"), (2, "b")]
    assert seen(reader) == []
    write(path, "c")
    assert seen(reader) == [(3, "c")]
    assert seen(EventReader(path)) == [(1, "a"), (2, "b"), (3, "c")]


def test_every_cut_of_the_file_yields_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, "a\rb\u2028", "c")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert len(EventReader(path).read()) == (cut >= first) + (cut == len(whole))


def test_reader_takes_lines_longer_than_its_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "CHUNK_BYTES", 64)
    path = tmp_path / "events.jsonl"
    write(path, "a" * 500, "b", "c" * 70)
    reader = EventReader(path)
    read = [event for _ in range(5) for event in reader.read()]
    assert [len(event.message) for event in read] == [500, 1, 70]


def test_absent_log_reads_as_empty(tmp_path: Path) -> None:
    assert EventReader(tmp_path / "none").read() == []


def test_numbers_json_cannot_hold_become_null(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(RunEvent(type="metrics", message="m", data={"loss": math.nan, "rate": math.inf}))
    assert EventReader(path).read()[0].data == {"loss": None, "rate": None}


def test_durable_event_is_synced_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with EventLog(tmp_path / "events.jsonl") as log:
        monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
        log.append(message("a"))
        assert synced == []
        log.append(RunEvent(type="commit", message="b", durable=True))
        assert synced == [(tmp_path / "events.jsonl").stat().st_size]


def test_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    real_write = os.write

    def half_write(fd: int, data: memoryview) -> int:
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return real_write(fd, data[: len(data) - 20])

    with EventLog(path) as log:
        log.append(message("a"))
        monkeypatch.setattr(os, "write", half_write)
        with pytest.raises(OSError, match="No space"):
            log.append(message("b"))
        monkeypatch.undo()
        log.append(message("c"))
    assert seen(EventReader(path)) == [(1, "a"), (2, "c")]
