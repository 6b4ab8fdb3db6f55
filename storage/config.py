"""What a user says of a volume: a directory, how much of it, by which road. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Backend = Literal["auto", "direct", "buffered", "gds"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Read a size: "4096", "500MB" (powers of 1000), "2GiB" (powers of 1024); ValueError if odd."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; wanted bytes, or a form like 500MB or 2GiB")
    number, unit = match.groups()
    scale = 1
    if unit:
        scale = (1024 if unit[1:] else 1000) ** _POWERS[unit[0].lower()]
    return int(float(number) * scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeConfig:
    """A directory on one drive, and how much of it may be used.

    `limit_bytes` bounds all stores below `path` together. `throttle_bytes_per_second` slows reads
    and writes, taken together, to that rate: it models a slower drive. `gds` asks for GPUDirect
    Storage; where it is not proven to be real, the volume does what `auto` does and says why.
    """

    path: Path
    limit_bytes: int | None = None
    backend: Backend = "auto"
    throttle_bytes_per_second: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "PATH" or "PATH:BYTES"; ValueError when BYTES is no size."""
        head, colon, tail = text.rpartition(":")
        if not colon or "/" in tail:
            return cls(path=Path(text))
        return cls(path=Path(head), limit_bytes=parse_bytes(tail))
