"""Templates into HTML, with the few words that all of them use."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .formats import NONE_YET, pick, shown, width
from .status import product_version

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, view: dict[str, Any]) -> str:
    """The page of that template. Values are escaped."""
    return _environment().get_template(template).render(view)


def compile_all() -> None:
    """Make every template ready."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def live(root: Any, path: str, form: str, none: str = NONE_YET) -> Markup:
    """A value that the page's script keeps fresh: it has the path, the form and the words for None.

    `path` leads from `root`, which is the object that the page's stream tells anew.
    """
    told = shown(pick(root, path), form, none)
    return Markup('<span class="num" data-v="{}" data-as="{}" data-none="{}">{}</span>').format(
        path, form, none, told
    )


def bar(root: Any, path: str, form: str, kind: str = "") -> Markup:
    """A bar that the page's script keeps fresh. What it says is said in words beside it."""
    return Markup(
        '<svg class="bar {}" aria-hidden="true" focusable="false">'
        '<rect class="bar-fill" data-w="{}" data-as="{}" width="{}%" height="100%"/></svg>'
    ).format(kind, path, form, width(pick(root, path), form))


def when(seconds: float | None) -> Markup:
    """A moment, which the page's script turns into local time."""
    if seconds is None:
        return Markup(NONE_YET)
    moment = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        moment.isoformat(), moment.strftime("%Y-%m-%d %H:%M")
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        bar=bar, live=live, when=when, pick=pick, shown=shown, version=product_version()
    )
    return made
