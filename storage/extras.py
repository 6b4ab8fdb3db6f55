"""Optional packages: the line that installs what is missing here."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

DISTRIBUTION = "headrace"
CHECKOUT = Path(__file__).resolve().parents[1]


def install_line(extra: str) -> str:
    """The command that adds an extra of pyproject.toml to this Python.

    An installed Headrace, from a checkout or not, goes by its name, since pip keeps what is there
    and adds what the extra wants. One that runs from a checkout without being installed goes by
    the checkout's path.
    """
    try:
        distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return f"pip install '{CHECKOUT}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"
