"""Which folders are models, whatever else lies beside them."""

import os
from pathlib import Path

import pytest

from headrace.service.model_names import base_models


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
