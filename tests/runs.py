"""Small runs of the engine for tests: a tiny model, a random data set, and what came of it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from headrace.engine import (
    ModelSpec,
    ParamSpec,
    RecordLayout,
    RunEvent,
    RunResult,
    TrainConfig,
    read_model_spec,
    run_job,
)
from headrace.engine.export import ReadPieces
from headrace.engine.methods import method_spec
from headrace.engine.report import StopReason
from headrace.storage import HostArena, TensorStore, VolumeConfig

STORE = "run"
MIB = 2**20
ReadRecord = Callable[[RecordLayout, torch.Tensor], None]


class Run:
    """A run in a folder of its own; `state()` reads every component of every record back."""

    def __init__(self, folder: Path, model_dir: Path, dataset: Path, **settings: Any) -> None:
        self.folder = folder
        volume = folder / "volume"
        volume.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = {
            "model": str(model_dir),
            "dataset": str(dataset),
            "learning_rate": 1e-4,
            "batch_rows": 6,
            "microbatch_rows": 4,
            "max_steps": 4,
            "num_epochs": 50,
            "state_tier": "nvme",
            "loss_chunk_tokens": 16,
            "device_bytes": 512 * MIB,
            "host_bytes": 256 * MIB,
            "volumes": (str(volume),),
        }
        self.config = TrainConfig(**{**values, **settings})
        self.events: list[RunEvent] = []

    def go(
        self,
        *,
        poll: Callable[[], StopReason | None] = lambda: None,
        emit: Callable[[RunEvent], None] = lambda event: None,
    ) -> RunResult:
        """Run, or go on, to the end or until `poll` says stop."""

        def record(event: RunEvent) -> None:
            self.events.append(event)
            emit(event)

        return run_job(self.config, run_dir=self.folder / "run", name=STORE, emit=record, poll=poll)

    def metrics(self) -> list[dict[str, Any]]:
        """Data of the step reports, in order."""
        return [event.data for event in self.events if event.type == "metrics"]

    def state(self) -> dict[str, torch.Tensor]:
        """Every component of every record of the last commit, by "record.component"."""
        return read_state(self.config)


def whole_params(spec: ModelSpec, read_record: ReadRecord) -> ReadPieces:
    """What an export asks for, from a function that fills a record's weights."""
    scratch = torch.empty(max(record.num_elements for record in spec.records))

    def read_pieces(layout: RecordLayout) -> Iterator[tuple[ParamSpec, torch.Tensor]]:
        values = scratch[: layout.num_elements]
        read_record(layout, values)
        for param in layout.params:
            yield param, values[param.offset : param.offset + param.num_elements]

    return read_pieces


def read_state(config: TrainConfig) -> dict[str, torch.Tensor]:
    """Every component of every trained record of a run's last commit."""
    spec = method_spec(read_model_spec(config.model), config)
    volumes = [VolumeConfig.parse(text) for text in config.volumes]
    found = {}
    with TensorStore.open(volumes, name=STORE, read_only=True) as store:
        for layout in spec.trained:
            record = store.records[layout.name]
            with HostArena(record.padded_bytes) as arena:
                slot = arena.carve(record.padded_bytes)
                store.read_into(layout.name, slot).result()
                for one in record.tensors:
                    place = record.offset(one.name)
                    tensor = slot.tensor(getattr(torch, one.dtype), one.shape[0], place)
                    found[f"{layout.name}.{one.name}"] = tensor.clone()
                del tensor, slot
    return found


def read_params(config: TrainConfig, component: str) -> dict[str, torch.Tensor]:
    """One fp32 component of the last commit, by the names and in the shapes of the checkpoint."""
    state = read_state(config)
    pieces: dict[str, list[torch.Tensor]] = {}
    for record in method_spec(read_model_spec(config.model), config).trained:
        flat = state[f"{record.name}.{component}"]
        for param in record.params:
            values = flat[param.offset : param.offset + param.num_elements].view(param.shape)
            pieces.setdefault(param.name, []).append(values)
    return {name: torch.cat(parts) for name, parts in pieces.items()}


def assert_same_state(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Every bit of weights and moments is the same."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)), name


_CHILD = """
import json, os, signal, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from runs import Run
kill_at = int(sys.argv[4])
count = 0
def emit(event):
    global count
    count += 1
    if count == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
folders = [Path(text) for text in sys.argv[1:4]]
Run(*folders, **json.loads(sys.argv[5])).go(emit=emit)
"""


def killed(
    folder: Path, model: Path, dataset: Path, settings: dict[str, Any], *, kill_at: int
) -> int:
    """The exit status of a run in a process of its own that kills itself at an event."""
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent / ".src")]
    arguments = [*map(str, (folder, model, dataset, kill_at)), json.dumps(settings)]
    command = [sys.executable, "-c", _CHILD.format(paths=paths), *arguments]
    return subprocess.run(command, env={**os.environ}, check=False).returncode
