"""Optional packages: each one that is missing is answered with the line that installs it."""

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from headrace.engine.gguf_header import load_gguf_package
from headrace.engine.parquet_rows import ParquetRows
from headrace.engine.unpacking import Measured, unpack
from headrace.service.cli.doctor_drives import check_gds
from headrace.service.errors import ApiError
from headrace.service.tracking import check_integrations
from headrace.storage import StoreError, extras, install_line
from headrace.storage.gds import load_kvikio

ROOT = Path(__file__).parents[1]
OPTIONAL = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
FOR_MAKE = {"demo", "test", "image"}  # of this project's own commands, which install them


def read_zstd(folder: Path) -> None:
    (folder / "rows.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd and so on")
    import io

    unpack(io.BufferedReader(Measured(folder / "rows.jsonl.zst")), name="rows.jsonl.zst")


def look_for_gds(folder: Path) -> None:
    raise RuntimeError(check_gds(folder).found)


CASES: list[tuple[str, str, Callable[[Path], object]]] = [
    ("gguf", "gguf", lambda folder: load_gguf_package()),
    ("zstd", "zstandard", read_zstd),
    ("parquet", "pyarrow.parquet", lambda folder: ParquetRows(folder / "rows.parquet")),
    ("tensorboard", "tensorboard",
     lambda folder: check_integrations({"integrations": [{"type": "tensorboard"}]})),
    ("gds", "kvikio", lambda folder: load_kvikio()),
    ("gds", "kvikio", look_for_gds),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "module", "use"), CASES)
def test_what_is_missing_is_answered_with_the_line_that_installs_it(
    extra: str, module: str, use: Callable[[Path], object], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises((ValueError, RuntimeError, StoreError, ApiError)) as said:
        use(tmp_path)
    message = said.value.message if isinstance(said.value, ApiError) else str(said.value)
    assert install_line(extra) in message


def test_every_extra_that_headrace_uses_has_its_case() -> None:
    assert {extra for extra, _, _ in CASES} == OPTIONAL.keys() - FOR_MAKE


def test_the_line_names_what_is_installed_and_else_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: object())
    *command, wanted = shlex.split(install_line("gguf"))
    assert command == ["pip", "install"]
    asked = Requirement(wanted)
    assert (asked.name, asked.extras) == ("headrace", {"gguf"})

    def not_there(name: str) -> object:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", not_there)
    *command, wanted = shlex.split(install_line("gguf"))
    path = wanted.removesuffix("[gguf]")
    assert path != wanted and Path(path).joinpath("pyproject.toml").is_file()


def test_the_readme_says_what_each_extra_is_for() -> None:
    text = ROOT.joinpath("README.md").read_text()
    table = text.partition("| extra | for |")[2].partition("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = re.findall(r"`([a-z]+)`", " ".join(first_cells))
    assert sorted(named) == sorted(OPTIONAL)
