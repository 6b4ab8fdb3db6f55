from pathlib import Path

import pytest

from headrace.storage import (
    NoSpace,
    RecordSpec,
    TensorSpec,
    VolumeConfig,
    VolumeRoom,
    find_overpromises,
    fit_store,
    measure_rooms,
)

GB = 10**9


def room(path: str, **changed: int | None) -> VolumeRoom:
    """A volume of a drive with 100 GB free, 5 of them kept."""
    values: dict[str, int | None] = {
        "free_bytes": 100 * GB, "reserve_bytes": 5 * GB, "device": 1, "taken_bytes": 0,
    }  # fmt: skip
    return VolumeRoom(path=path, **{**values, **changed})  # type: ignore[arg-type]


def test_a_limit_beyond_the_free_drive_is_told_with_the_numbers() -> None:
    (found,) = find_overpromises([room("/a", limit_bytes=500 * GB)])
    assert (found.promised_bytes, found.free_bytes) == (500 * GB, 100 * GB)
    assert str(found) == (
        "volume /a may take 500.0 GB more by its limit, but 100.0 GB are free on the drive, 5.0 GB "
        "of them kept in reserve; plans go by what is there"
    )


@pytest.mark.parametrize(
    "rooms",
    [
        [room("/a")],
        [room("/a", limit_bytes=95 * GB)],
        [room("/a", limit_bytes=500 * GB, taken_bytes=405 * GB)],
        [room("/a", limit_bytes=80 * GB), room("/b", limit_bytes=80 * GB, device=2)],
        [room("/a", limit_bytes=80 * GB), room("/b")],
    ],
)
def test_a_limit_that_the_drive_can_keep_is_not_told(rooms: list[VolumeRoom]) -> None:
    assert not find_overpromises(rooms)


def test_limits_of_one_drive_count_together() -> None:
    rooms = [room("/a", limit_bytes=80 * GB), room("/b", limit_bytes=80 * GB)]
    (found,) = find_overpromises(rooms)
    assert found.paths == ("/a", "/b") and found.promised_bytes == 160 * GB
    assert "volumes /a, /b (one drive) may take 160.0 GB more by their limits" in str(found)


def test_a_store_is_planned_by_what_is_there_and_not_by_the_limit() -> None:
    tensor = TensorSpec(name="bytes", dtype="uint8", shape=(60 * GB,))
    record = RecordSpec(name="a", tensors=(tensor,), mutable=True)
    with pytest.raises(NoSpace, match="4769 MiB kept in reserve, but only 95367 MiB are free"):
        fit_store([room("/a", limit_bytes=500 * GB)], [record])
    with pytest.raises(
        NoSpace, match="114445 MiB are needed and 0 MiB are taken .* limit of 104904 MiB"
    ):
        fit_store([room("/a", limit_bytes=110 * GB, free_bytes=1000 * GB)], [record])


def test_a_real_drive_is_measured(tmp_path: Path) -> None:
    assert find_overpromises(measure_rooms([VolumeConfig.parse(f"{tmp_path}:900TB")]))
    assert not find_overpromises(measure_rooms([VolumeConfig.parse(f"{tmp_path}:1MB")]))
