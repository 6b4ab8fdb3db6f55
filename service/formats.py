"""Numbers as people read them on the page. Pure.

`static/format.js` says the same in the browser, where numbers change; a test holds the two
together. None is what is not known, and is never shown as a number.
"""

from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

UNKNOWN = "not known"
NONE_YET = "–"

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def size(value: float) -> str:
    """Bytes with a decimal unit, as drives are sold: 1610000000 -> '1.61 GB'."""
    unit = 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{_three(value) if unit else _round(value)} {_SIZES[unit]}"


def some(value: float) -> str:
    """Bytes, where none means that nobody counted."""
    return size(value) if value else NONE_YET


def rate(value: float) -> str:
    """Bytes a second."""
    return f"{size(value)}/s"


def count(value: float) -> str:
    """A whole number in groups of three digits."""
    return f"{_round(value):,}"


def loss(value: float) -> str:
    """A loss, with four digits after the point."""
    return _fixed(value, 4)


def share(value: float) -> str:
    """A part of one, in per cent."""
    return f"{_round(value * 100)} %"


def percent(value: float) -> str:
    """A number of per cent."""
    return f"{_round(value)} %"


def per_second(value: float) -> str:
    """Something a second, with three digits or whole."""
    return count(value) if value >= 999.5 else _three(value)


def small(value: float) -> str:
    """A small number such as a learning rate: 0.00002 -> '2.00e-5'."""
    if value == 0:
        return "0"
    with localcontext(rounding=ROUND_HALF_UP):
        mantissa, exponent = f"{Decimal(value):.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def duration(value: float) -> str:
    """Seconds in the one or two units that matter: 8040 -> '2 h 14 min'."""
    if value < 59.5:
        return (
            f"{_three(value)} s" if value >= 0.9995 or not value else f"{_three(1000 * value)} ms"
        )
    minutes, seconds = divmod(_round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24} h"


def steps(value: Mapping[str, Any]) -> str:
    """How far a run is, out of what has `step` and `total_steps`."""
    total = value.get("total_steps")
    return f"{count(value.get('step') or 0)} of {count(total)}" if total else NONE_YET


def used(value: Mapping[str, Any]) -> str:
    """What is taken, out of what has `total_bytes` and `free_bytes`."""
    return size(value["total_bytes"] - value["free_bytes"])


def celsius(value: float) -> str:
    """A temperature."""
    return f"{_round(value)} °C"


def text(value: Any) -> str:
    """What is words already."""
    return str(value)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "size": size,
    "some": some,
    "rate": rate,
    "count": count,
    "loss": loss,
    "share": share,
    "percent": percent,
    "per_second": per_second,
    "small": small,
    "duration": duration,
    "celsius": celsius,
    "steps": steps,
    "used": used,
    "text": text,
}


def _used_share(value: Mapping[str, Any]) -> float:
    return float((value["total_bytes"] - value["free_bytes"]) / max(1, value["total_bytes"]))


def _steps_share(value: Mapping[str, Any]) -> float:
    return float((value.get("step") or 0) / max(1, value.get("total_steps") or 1))


def _traffic_share(value: Mapping[str, Any]) -> float | None:
    """What a drive moves now, of what it was calibrated at."""
    ceiling = pick(value, "calibration.mixed_bytes_per_second")
    now = value.get("traffic")
    if not ceiling or not now:
        return None
    return float((now["read_bytes_per_second"] + now["write_bytes_per_second"]) / ceiling)


# The lengths of bars, as parts of one; None where there is nothing to show.
SHARES: Mapping[str, Callable[[Any], float | None]] = {
    "used": _used_share,
    "steps": _steps_share,
    "traffic": _traffic_share,
    "share": float,
}


def shown(value: Any, form: str, none: str = UNKNOWN) -> str:
    """A value in one of the FORMATS, or the words for None."""
    return none if value is None else FORMATS[form](value)


def width(value: Any, form: str) -> float:
    """How long a bar is, from 0 to 100."""
    part = None if value is None else SHARES[form](value)
    return round(100 * min(1.0, max(0.0, part or 0.0)), 2)


def pick(values: Any, path: str) -> Any:
    """What a dotted path leads to in nested objects and lists; None where it leads nowhere."""
    for name in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(name)
        elif isinstance(values, list | tuple) and name.isdecimal() and int(name) < len(values):
            values = values[int(name)]
        else:
            return None
    return values


def _three(value: float) -> str:
    """Three digits, or whole above 100."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return _fixed(value, digits)


def _round(value: float) -> int:
    return int(_fixed(value, 0))


def _fixed(value: float, digits: int) -> str:
    """So many digits after the point, halves upwards, as browsers round."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
