"""What writing costs a drive: bytes of ours, the drive's own figures, and how long it will last."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_DATA_UNIT_BYTES = 512_000  # NVMe counts in thousands of 512 bytes
_TIMEOUT_SECONDS = 10
_KELVIN = 273.15


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveHealth:
    """The drive's own figures; None for what cannot be read, and `why` says the reason.

    `percentage_used` is the share of the rated life, and may exceed 100. `written_bytes` counts
    everything ever written to the drive, by anyone.
    """

    device: str
    percentage_used: int | None = None
    temperature_celsius: float | None = None
    written_bytes: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeWear:
    """One volume: what this store wrote in its life, and the health of the drive below it."""

    path: str
    store_written_bytes: int
    health: DriveHealth

    @property
    def rated_bytes(self) -> float | None:
        """Bytes that the drive is made for, from what it has written and used of its life so far.

        None where the drive does not say, or has used less than one percent.
        """
        used, written = self.health.percentage_used, self.health.written_bytes
        return written / (used / 100) if used and written else None

    def bytes_left(self) -> float | None:
        """Bytes until the rated life is over; None when unknown."""
        rated, written = self.rated_bytes, self.health.written_bytes
        return None if rated is None or written is None else max(0.0, rated - written)

    def to_dict(self) -> dict[str, Any]:
        """The fields and the forecast as JSON-ready values."""
        return {**asdict(self), "rated_bytes": self.rated_bytes, "bytes_left": self.bytes_left()}


def drive_health(path: Path, *, sys: Path = Path("/sys")) -> DriveHealth:
    """Ask the drive that holds `path`. Never raises: what cannot be known is None, with the reason.

    `nvme` or `smartctl` is asked, which takes root; the temperature is in sysfs for everyone.
    """
    device = block_device(path, sys)
    if device is None:
        return DriveHealth(device="", why="the file system is not on a block device of its own")
    temperature = _temperature(device, sys)
    asked = _ask_nvme(device) if device.startswith("nvme") else _ask_smartctl(device)
    if isinstance(asked, str):
        return DriveHealth(device=device, temperature_celsius=temperature, why=asked)
    return DriveHealth(
        device=device,
        percentage_used=asked.get("percentage_used"),
        temperature_celsius=asked.get("temperature_celsius", temperature),
        written_bytes=asked.get("written_bytes"),
    )


def block_device(path: Path, sys: Path = Path("/sys")) -> str | None:
    """Name of the whole drive below `path` (nvme0n1, vda), None when it is not just one, or there
    is nothing at `path`."""
    try:
        number = os.stat(path).st_dev
    except OSError:
        return None
    link = sys / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
    if not link.exists():
        return None
    folder = link.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    return folder.name


def parse_nvme(text: str) -> dict[str, Any]:
    """Figures out of `nvme smart-log -o json`; temperatures there are in kelvin."""
    values = json.loads(text)
    found: dict[str, Any] = {}
    used = values.get("percent_used", values.get("percentage_used"))
    if used is not None:
        found["percentage_used"] = int(used)
    if "temperature" in values:
        found["temperature_celsius"] = round(float(values["temperature"]) - _KELVIN, 1)
    if "data_units_written" in values:
        found["written_bytes"] = int(values["data_units_written"]) * _DATA_UNIT_BYTES
    return found


def parse_smartctl(text: str) -> dict[str, Any]:
    """Figures out of `smartctl -j -a`, as far as the drive gives them."""
    values = json.loads(text)
    log = values.get("nvme_smart_health_information_log", {})
    found: dict[str, Any] = {}
    if "percentage_used" in log:
        found["percentage_used"] = int(log["percentage_used"])
    if "data_units_written" in log:
        found["written_bytes"] = int(log["data_units_written"]) * _DATA_UNIT_BYTES
    if "current" in values.get("temperature", {}):
        found["temperature_celsius"] = float(values["temperature"]["current"])
    return found


def _ask_nvme(device: str) -> dict[str, Any] | str:
    if shutil.which("nvme") is None:
        return _ask_smartctl(device)
    text = _run(["nvme", "smart-log", "-o", "json", f"/dev/{device}"])
    return parse_nvme(text) if text.startswith("{") else text


def _ask_smartctl(device: str) -> dict[str, Any] | str:
    if shutil.which("smartctl") is None:
        return f"neither nvme-cli nor smartmontools is installed to ask /dev/{device}"
    text = _run(["smartctl", "-j", "-a", f"/dev/{device}"])
    if not text.startswith("{"):
        return text
    return parse_smartctl(text) or f"/dev/{device} gives no figures of its health"


def _run(command: list[str]) -> str:
    """The JSON that a command prints, or a sentence on why there is none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} could not be asked: {error}"
    out = done.stdout.strip()
    if out.startswith("{"):
        return out
    return f"{command[0]} said: {(done.stderr.strip() or out or 'nothing').splitlines()[0]}"


def _temperature(device: str, sys: Path) -> float | None:
    """Degrees from the hardware monitor in sysfs, where the drive has one."""
    for file in sorted((sys / "block" / device / "device").glob("hwmon*/temp1_input")):
        try:
            return int(file.read_text()) / 1000
        except (OSError, ValueError):
            continue
    return None
