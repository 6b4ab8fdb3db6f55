"""One command of the command line, as a shell would run it."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.service.__main__ import main


def run(*arguments: str | Path) -> int:
    """The exit code of one command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, Any]:
    """The exit code of one command and the JSON it prints."""
    code = run(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)
