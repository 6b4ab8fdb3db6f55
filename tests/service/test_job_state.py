"""What a job holds on the volumes is given back, once and whole."""

from pathlib import Path

from headrace.service.job_state import drop_state
from headrace.storage import RecordSpec, TensorSpec, TensorStore, VolumeConfig

RECORD = RecordSpec(name="r", tensors=(TensorSpec(name="t", dtype="float32", shape=(10,)),))


def test_the_state_is_removed_from_every_volume(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
    volumes = [VolumeConfig(path=path) for path in paths]
    TensorStore.create(volumes, [RECORD], name="job", reserve_bytes=0).close()
    texts = [f"{paths[0]}:1GiB", str(paths[1])]
    assert drop_state(texts, "job")
    assert not any(list(path.iterdir()) for path in paths)
    assert not drop_state(texts, "job")


def test_what_is_left_of_a_state_goes_too(tmp_path: Path) -> None:
    volume = VolumeConfig(path=tmp_path)
    TensorStore.create([volume], [RECORD], name="job", reserve_bytes=0).close()
    (tmp_path / "job" / "manifest.json").unlink()
    assert not drop_state([str(tmp_path)], "job")
    assert not (tmp_path / "job").exists()
