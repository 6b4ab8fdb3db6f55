"""Small runs of the engine for tests: a tiny model, a random data set, and what came of it."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from forked import exit_status
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
from headrace.engine.adamw_cpu import compile_update
from headrace.engine.export import ReadPieces
from headrace.engine.methods import method_spec
from headrace.engine.report import StopReason
from headrace.engine.run import STARTED
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
            # On a GPU CUDA's own start-up counts.
            "device_bytes": (2048 if settings.get("device") == "cuda" else 512) * MIB,
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
        """Run, or go on, to the end or until `poll` says stop, which is not asked in the import."""

        def record(event: RunEvent) -> None:
            self.events.append(event)
            emit(event)

        run_dir = self.folder / "run"
        imported = run_dir / STARTED

        def asked() -> StopReason | None:
            return poll() if imported.exists() else None

        return run_job(self.config, run_dir=run_dir, name=STORE, emit=record, poll=asked)

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


@cache
def before_fork() -> None:
    """Compile what every run updates with (forked.py): a second or two of each killed one."""
    compile_update("exact", torch.float32)


def killed(
    folder: Path, model: Path, dataset: Path, settings: dict[str, Any], *, kill_at: int
) -> int:
    """The exit status of a run in a process of its own that kills itself at an event."""
    places = map(str, (folder, model, dataset))
    return exit_status("runs:run_until_killed", *places, settings, kill_at)


def run_until_killed(
    folder: str, model: str, dataset: str, settings: dict[str, Any], kill_at: int
) -> None:
    """Run, and die at an event."""
    left = kill_at

    def emit(event: RunEvent) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    Run(Path(folder), Path(model), Path(dataset), **settings).go(emit=emit)


def go_on_until(config: dict[str, Any], folder: str, message: str) -> None:
    """Go on with a run in its folder, and die when it says a message that begins so."""

    def emit(event: RunEvent) -> None:
        if event.message.startswith(message):
            os.kill(os.getpid(), signal.SIGKILL)

    settings = TrainConfig.from_dict(config)
    run_job(settings, run_dir=Path(folder) / "run", name=STORE, emit=emit, poll=lambda: None)
