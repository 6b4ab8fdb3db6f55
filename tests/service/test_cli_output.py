"""What commands say while they work: to a terminal alone, and out of every program's way."""

import io

import pytest

from headrace.service.cli.output import telling


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_what_takes_seconds_is_told_to_a_terminal_alone(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    with telling() as tell:
        tell("writing to volume [/mnt/a]")
    said = written.getvalue()
    assert ("writing to volume [/mnt/a] …" in said) is written.isatty()
    assert bool(said) is written.isatty() and capsys.readouterr().out == ""
