"""One command of the command line, as a shell would run it."""

from pathlib import Path

import pytest

from headrace.service.__main__ import main


def run(*arguments: str | Path) -> int:
    """The exit code of one command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)
