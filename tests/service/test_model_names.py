"""Which folders are models, whatever else lies beside them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.service.events import Hub
from headrace.service.journal import Journal
from headrace.service.model_names import base_models, unknown_model


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path / "a.db", Hub())
    yield opened
    opened.close()


def folder(root: Path, name: str) -> Path:
    path = root / name
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def test_what_cannot_be_looked_at_holds_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive has a `lost+found` that root alone may look into; a link may lead to itself."""
    folder(tmp_path, "good")
    folder(tmp_path, "größe")
    folder(tmp_path, os.fsdecode(b"no-text-\xff"))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "outside").symlink_to("/etc")
    hidden = tmp_path / "lost+found"
    hidden.mkdir()
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    roots = [tmp_path, tmp_path / "not there", hidden / "config.json"]
    assert [model.name for model in base_models(roots)] == ["good", "größe"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("outside", "is a link that leads out of"),
        ("loop", "cannot be looked at"),
        ("empty", "neither a config.json nor a .gguf file"),
        ("file", "neither a config.json nor a .gguf file"),
        ("goo", "Did you mean 'good'?"),
        ("../elsewhere", "is not in"),
    ],
)
def test_a_folder_that_is_no_model_is_told_why(
    name: str, said: str, tmp_path: Path, journal: Journal
) -> None:
    """Who put a link into the models directory sees it there, so "is not in" alone would puzzle."""
    root = tmp_path / "models"
    root.mkdir()
    folder(tmp_path, "elsewhere")
    folder(root, "good")
    (root / "outside").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to("loop")
    (root / "empty").mkdir()
    (root / "file").write_text("")
    error = unknown_model(name, [root], journal)
    assert error.status == 400 and error.code == "model_not_found"
    assert said in error.message and name in error.message
