"""TensorBoard: a run's numbers as event files in `tensorboard/` of its folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.engine import RunEvent

FOLDER = "tensorboard"
FLUSH_SECONDS = 5.0
SKIPPED = ("step", "total_steps")  # they are the axis


class TensorBoard:
    """Writes the numbers of steps and evaluations as TensorBoard's scalars."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer  # tensorboard.summary.Writer, which has no types
        self._flushed_at = monotonic()

    def take(self, event: RunEvent) -> None:
        """Write the numbers of an event; others than reports of steps and evaluations have none."""
        for tag, value in scalars_of(event):
            self._writer.add_scalar(tag, value, event.step)
        if monotonic() - self._flushed_at >= FLUSH_SECONDS or event.type == "eval":
            self._writer.flush()
            self._flushed_at = monotonic()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def open_tensorboard(job_dir: Path) -> TensorBoard:
    """The tracker of a job. Its package is an extra, and is imported when a job asks for it."""
    from tensorboard.summary import Writer

    return TensorBoard(Writer(str(job_dir / FOLDER)))


def scalars_of(event: RunEvent) -> Iterator[tuple[str, float]]:
    """Tags and values: `eval/…`, `seconds/…` of a step's parts, `bytes/…` of links and memory, and
    `train/…` for the rest of a step's report."""
    if event.type == "eval":
        for name, value in _numbers(event.data):
            yield f"eval/{name.removeprefix('eval_')}", value
    if event.type == "metrics":
        for name, value in _numbers(event.data):
            for unit in ("seconds", "bytes"):
                if name.endswith(f"_{unit}"):
                    yield f"{unit}/{name.removesuffix(f'_{unit}')}", value
                    break
            else:
                yield f"train/{name}", value
        for link, moved in event.data["links"].items():
            yield f"bytes/{link}", float(moved["payload_bytes"])


def _numbers(data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in data.items():
        if name not in SKIPPED and isinstance(value, int | float):
            yield name, float(value)
