"""Boxes that one does not own, described in a file: every figure with the source it comes from.

TOML or JSON. What is planned for such a box is a plan, not a measurement, and says so.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.storage import VolumeRoom

from .capacity import Box
from .rates import LayerRate, Prices, Rates, VolumeRates

SHIPPED = Path(__file__).parent / "boxes"
# Of what a box has, for the run; the rest is for the system. The same as on the machine itself.
DEVICE_SHARE, HOST_SHARE = 0.9, 0.8
_UNIFIED_DEVICE_SHARE = 0.6  # of one memory for both; the slots and gradients of the host lie in it

_MEMORY = ("device_bytes", "host_bytes")
_RATES = ("h2d", "d2h", "host_memory", "device_memory", "flops")
_DRIVE = ("count", "bytes", "read", "write")
_OPTIONAL = {
    "memory": (), "rates": ("both",), "drive": ("mixed", "rated_bytes"),
    "prices": ("device", "host", "volumes"),
}  # fmt: skip


class BadBoxFile(ValueError):
    """A box file that cannot be used; the message says where and what was wanted."""


def shipped_boxes() -> dict[str, Path]:
    """The boxes that come with Headrace, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def read_box(name_or_path: str) -> Box:
    """A shipped box by its name, or one from a file. BadBoxFile when it is neither, or wrong."""
    shipped = shipped_boxes()
    path = shipped.get(name_or_path, Path(name_or_path))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadBoxFile(
            f"{name_or_path} is neither a file that can be read ({error.strerror}) nor one of "
            f"{', '.join(shipped)}"
        ) from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise BadBoxFile(f"{path}: {error}") from error
    return _box(values, path)


def _box(values: Mapping[str, Any], path: Path) -> Box:
    unified = bool(values.get("unified", False))
    memory = _figures(values, "memory", _MEMORY, path)
    rates = _figures(values, "rates", _RATES, path)
    drive = _figures(values, "drive", _DRIVE, path)
    prices = _figures(values, "prices", (), path) if "prices" in values else None
    volume = VolumeRates(
        read=drive["read"],
        write=drive["write"],
        mixed=drive.get("mixed"),
        rated_bytes=drive.get("rated_bytes"),
    )
    paths = [f"drive-{i}" for i in range(int(drive["count"]))]
    device_share = _UNIFIED_DEVICE_SHARE if unified else DEVICE_SHARE
    host_share = 1 - _UNIFIED_DEVICE_SHARE if unified else HOST_SHARE
    flops = rates["flops"]
    return Box(
        device=str(values.get("device", "cuda")),
        device_bytes=int(device_share * memory["device_bytes"]),
        host_bytes=int(host_share * memory["host_bytes"]),
        volumes={
            name: VolumeRoom(
                path=name, free_bytes=int(drive["bytes"]), bytes_per_second=volume.mixed_rate
            )
            for name in paths
        },
        rates=Rates(
            origin="described",
            name=str(values.get("name", path.stem)),
            h2d=rates["h2d"],
            d2h=rates["d2h"],
            both=rates.get("both"),
            host_memory=rates["host_memory"],
            device_memory=rates["device_memory"],
            layers=(LayerRate(tokens=4096, forward_flops=flops, backward_flops=flops),),
            default_volume=volume,
            volumes=dict.fromkeys(paths, volume),
            prices=None if prices is None else Prices(**prices),
            unified=unified,
        ),
    )


def _figures(
    values: Mapping[str, Any], section: str, needed: tuple[str, ...], path: Path
) -> dict[str, float]:
    """The figures of a section, each a table of `value` and `source`."""
    table = values.get(section)
    if not isinstance(table, Mapping):
        raise BadBoxFile(f"{path}: no section [{section}]; wanted {', '.join(needed)} in it")
    known = {*needed, *_OPTIONAL[section]}
    if unknown := sorted(set(table) - known):
        raise BadBoxFile(f"{path}: [{section}] does not know {', '.join(unknown)}")
    if missing := sorted(set(needed) - set(table)):
        raise BadBoxFile(f"{path}: [{section}] has no {', '.join(missing)}")
    return {name: _figure(figure, f"{path}: {section}.{name}") for name, figure in table.items()}


def _figure(figure: Any, where: str) -> float:
    value = figure.get("value") if isinstance(figure, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise BadBoxFile(f"{where} is {figure!r}; wanted a table of value, above 0, and source")
    if not str(figure.get("source", "")).strip():
        raise BadBoxFile(f"{where} has no source: say where the figure comes from")
    return float(value)
