"""`convert` on the command line: what was written, how far it is, and what is refused."""

import json
from pathlib import Path

import pytest

from command import run
from headrace.service.cli.output import Exit
from tiny_gguf_families import write_case


def test_convert_says_what_it_wrote_and_what_was_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_case(tmp_path / "hf", "qwen2")
    assert run("convert", source, tmp_path / "a", "--dtype", "q8_0") == Exit.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "read back: rounding to the export's dtype moves logits by up to" in shown
    assert run("convert", source, tmp_path / "b.gguf", "--json") == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert told["report"]["check"]["matches"] and told["path"] == str(tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").is_file()
    assert run("convert", tmp_path / "b.gguf", tmp_path / "c.gguf", "--dtype", "q8_0") == Exit.OK


def test_convert_refuses_what_cannot_be_and_what_is_there(tmp_path: Path) -> None:
    source = write_case(tmp_path / "hf", "mistral", sliding_window=8)
    assert run("convert", source, tmp_path / "out") == Exit.REFUSED
    assert not (tmp_path / "out").exists()
    assert run("convert", source, source) == Exit.USAGE
    assert run("convert", tmp_path / "none", tmp_path / "out") == Exit.REFUSED
