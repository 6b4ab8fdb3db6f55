"""Calibration: what drives and compute can do here, measured once and kept on the first volume."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import monotonic
from typing import NamedTuple

import torch

from headrace.storage import (
    BUSY_SHARE,
    HeldUp,
    NoSpace,
    VolumeConfig,
    VolumeWear,
    calibrate_volume,
    drive_health,
    read_calibration,
)

from .config import TrainConfig
from .heap import trim_heap
from .measure_box import ROUNDS, measure_box
from .measure_calls import measure_calls
from .measure_shape import measure_shape
from .model import ModelSpec
from .rate_file import read_rates, write_rates
from .rates import Rates, ShapeRates, shape_key
from .report import Emit, RunEvent
from .rounds import box_of_rounds, shape_of_rounds
from .state_record import state_record

MOST_SECONDS = {False: 15.0, True: 100.0}  # after which no other round begins


def device_name(device: str) -> str:
    """The GPU's name as its driver gives it; empty on the CPU."""
    return torch.cuda.get_device_name() if device == "cuda" else ""


def calibrate_compute(
    spec: ModelSpec,
    config: TrainConfig,
    volumes: Sequence[VolumeConfig],
    *,
    full: bool = False,
    microbatch_tokens: int | None = None,
    most_bytes: int | None = None,
    row_tokens: int | None = None,
    rated_bytes: float | None = None,
) -> Rates:
    """Measure copies, memory, the optimizer and this model's layers; keep it on the first volume.

    Takes some seconds, with `full` some tens. Layers are timed up to `microbatch_tokens`, and
    with no more than `most_bytes` of host memory; None: several hundred megabytes. On a CPU they
    have rows of `row_tokens`, where that is given. Shapes that were measured before on this
    hardware are kept. `rated_bytes` is what each volume's drive may be written in its life, where
    its maker is asked rather than the drive. OSError when
    the figures cannot be kept.
    """
    name = device_name(config.device)
    box, shape = _measure(
        spec,
        config,
        full=full,
        most_tokens=microbatch_tokens,
        most_bytes=most_bytes,
        row_tokens=row_tokens,
    )
    read, write = 0.0, 0.0
    if config.device == "cpu":  # on a GPU records are larger, and other threads compute
        records = [state_record(layout, config.state_format) for layout in spec.records]
        read, write = measure_calls(volumes[0], records)
    known = read_rates(volumes, device_name=name)  # now: another may have measured meanwhile
    shapes = dict(known.shapes) if known else {}
    rates = replace(
        box,
        read_seconds=read,
        write_seconds=write,
        name=name,
        shapes={**shapes, shape_key(spec, config): shape},
        rated_bytes=_ratings(volumes, rated_bytes, known),
    )
    write_rates(volumes, rates, device_name=name)
    return rates


def _measure(
    spec: ModelSpec,
    config: TrainConfig,
    *,
    full: bool,
    most_tokens: int | None,
    most_bytes: int | None,
    row_tokens: int | None,
) -> tuple[Rates, ShapeRates]:
    """Some rounds made one, as many as there is time for. What they took is free then.

    Rounds that other work held up are made again, and left out where others were not.
    """
    ends = monotonic() + MOST_SECONDS[full]
    rounds: list[_Round] = []
    wanted = ROUNDS[config.device]
    while not rounds or (_are_too_few(rounds, wanted) and monotonic() < ends):
        watch = HeldUp()
        box = measure_box(config.device, full=full, most_bytes=most_bytes)
        trim_heap()
        shape = measure_shape(
            spec,
            config,
            full=full,
            most_tokens=most_tokens,
            most_bytes=most_bytes,
            row_tokens=row_tokens,
        )
        trim_heap()
        rounds.append(_Round(box, shape, watch.share()))
    if config.device == "cuda":
        torch.cuda.empty_cache()
    return _made_one(rounds)


class _Round(NamedTuple):
    """What was measured once, and how much other work held it up meanwhile."""

    box: Rates
    shape: ShapeRates
    held_up: float

    @property
    def is_quiet(self) -> bool:
        return self.held_up <= BUSY_SHARE


def _are_too_few(rounds: Sequence[_Round], wanted: int) -> bool:
    """Quiet rounds, and all of them; of the latter there are at most twice as many."""
    return sum(one.is_quiet for one in rounds) < wanted and len(rounds) < 2 * wanted


def _made_one(rounds: Sequence[_Round]) -> tuple[Rates, ShapeRates]:
    """The middle of the quiet rounds; where none was, the best of each figure."""
    quiet = [one for one in rounds if one.is_quiet]
    counted = quiet or rounds
    held_up = median(one.held_up for one in counted)
    box = box_of_rounds([one.box for one in counted], best=not quiet)
    shape = shape_of_rounds([one.shape for one in counted], best=not quiet)
    return replace(box, held_up=held_up), replace(shape, held_up=held_up)


def _ratings(
    volumes: Sequence[VolumeConfig], given: float | None, known: Rates | None
) -> dict[str, float]:
    """Rated bytes by volume: as given, as the drive tells, or as was known before."""
    found = dict(known.rated_bytes) if known else {}
    for volume in volumes:
        health = drive_health(volume.path)
        told = VolumeWear(path=str(volume.path), store_written_bytes=0, health=health).rated_bytes
        if (rated := given or told) is not None:
            found[str(volume.path)] = rated
    return found


def measure_once(
    spec: ModelSpec,
    config: TrainConfig,
    volumes: Sequence[VolumeConfig],
    *,
    microbatch_tokens: int,
    most_bytes: int | None = None,
    row_tokens: int | None = None,
    emit: Emit,
) -> None:
    """Measure what is not known yet of the volumes and of this model's layers, and say so; and
    again what is in doubt: it was measured on a busy box, or a run since took another time.

    5 seconds for each volume, a few for the rest, and `most_bytes` of host memory. A volume without
    room for it goes unmeasured, one that takes no file now keeps none of it, and one that was
    measured in full is left as it is.
    """
    for volume in volumes:
        known = read_calibration(volume.path)
        if known is None or (known.doubt and not known.full):
            again = f" again: {known.doubt}" if known else ""
            emit(RunEvent(type="phase", message=f"measuring volume {volume.path}{again}"))
            try:
                calibrate_volume(volume)
            except (NoSpace, OSError) as error:
                emit(RunEvent(type="message", level="warn", message=f"not measured: {error}"))
    rates = read_rates(volumes, device_name=device_name(config.device))
    key = shape_key(spec, config)
    doubts = rates.for_shape(key).doubts if rates else ()
    if rates is None or key not in rates.shapes or doubts:
        again = f" again: {'; '.join(doubts)}" if doubts else ""
        message = f"measuring this machine with the model's layers{again}"
        emit(RunEvent(type="phase", message=message))
        try:
            calibrate_compute(
                spec,
                config,
                volumes,
                microbatch_tokens=microbatch_tokens,
                most_bytes=most_bytes,
                row_tokens=row_tokens,
            )
        except OSError as error:
            emit(RunEvent(type="message", level="warn", message=f"not kept: {error}"))
