"""Whether figures that were read from a file can be what they are said to be. Pure.

What is kept on a volume may be damaged there, or written by a hand: numbers that are texts, rates
that are zero. Whoever went by them would fail far from the file, so they count as not measured.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MOST = 1e30  # of any figure: no box does so much a second
# What making dataclasses of such values can raise, this module's own ValueError among it.
UNFIT = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def check_figures(one: Any) -> None:
    """ValueError for a dataclass with a value that its field's type does not allow, at any depth.

    Numbers are 0 to `MOST`, and above 0 where a field has no default, or None for one: those are
    divided by. A list of figures has one at least.
    """
    kind: Any = type(one)
    hints = _hints(kind)
    for each in fields(one):
        is_rate = each.default is None or each.default is MISSING
        _check(each.name, getattr(one, each.name), hints[each.name], is_rate)


@lru_cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _check(name: str, value: Any, wanted: Any, is_rate: bool) -> None:
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        if value is not None:
            _check(name, value, next(one for one in inner if one is not NoneType), is_rate)
        return
    if origin is tuple:
        fits = isinstance(value, tuple) and (bool(value) or not is_dataclass(inner[0]))
        parts = value if fits else ()
    elif origin is Mapping:
        fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        parts = value.values() if fits else ()
    elif origin is Literal:
        fits, parts = value in inner, ()
    elif wanted in (int, float):
        is_number = isinstance(value, int | wanted) and not isinstance(value, bool)
        fits, parts = is_number and 0 <= value <= MOST, ()
        fits = fits and (value > 0 or not is_rate or wanted is int)
    else:
        fits, parts = isinstance(value, wanted), ()
    if not fits:
        raise ValueError(f"{name} cannot be {value!r:.80}")
    for part in parts:
        _check(name, part, inner[-1] if origin is Mapping else inner[0], is_rate)
    if is_dataclass(value):
        check_figures(value)
