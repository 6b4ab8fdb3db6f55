"""The training state of a job on the volumes: whether there is any, and giving its space back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.storage import TensorStore, VolumeConfig

from .json_file import read_json


def spec_of(jobs_dir: Path, job_id: str) -> dict[str, Any] | None:
    """The fields of a prepared job's TrainConfig; None before it is prepared."""
    return read_json(jobs_dir / job_id / "spec.json")


def has_state(volumes: Sequence[str], name: str) -> bool:
    """Whether the volumes ("PATH[:BYTES]") hold training state of that name."""
    return TensorStore.exists([VolumeConfig.parse(text) for text in volumes], name=name)


def held_bytes(volumes: Sequence[str], name: str) -> dict[str, int]:
    """What the state of that name takes of each volume's drive, by the volume's directory."""
    paths = [VolumeConfig.parse(text).path for text in volumes]
    return {
        str(path): sum(one.stat().st_blocks * 512 for one in (path / name).glob("*"))
        for path in paths
    }


def drop_state(volumes: Sequence[str], name: str) -> bool:
    """Give the volumes ("PATH[:BYTES]") back the space of a job's state; whether there was any.

    StoreError while a process uses it.
    """
    configs = [VolumeConfig.parse(text) for text in volumes]
    found = TensorStore.exists(configs, name=name)
    TensorStore.remove(configs, name=name)  # what is left of one that is not whole, too
    return found
