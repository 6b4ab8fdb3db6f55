from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace.service.cli.output import CliError
from headrace.service.cli.serve import load_settings
from headrace.service.settings import Settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "headrace.toml"
    path.write_text('port = 1\nhost = "::1"\nhost_bytes = "2GiB"\nmodels_dir = ["/a", "/b"]\n')
    return path


def test_without_a_word_it_listens_to_this_machine_only() -> None:
    settings = Settings.load()
    assert (settings.host, settings.port, settings.device) == ("127.0.0.1", 8400, "auto")
    assert settings.volume_list == (str(settings.data_dir / "volumes"),)


def test_a_file_is_read(config: Path) -> None:
    settings = Settings.load(config)
    assert (settings.port, settings.host_bytes) == (1, 2 << 30)
    assert settings.models_dir == (Path("/a"), Path("/b"))


def test_the_environment_goes_before_the_file_and_options_before_both(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "2")
    monkeypatch.setenv("HEADRACE_HOST", "127.0.0.2")
    settings = Settings.load(config, port=3, host=None)
    assert (settings.port, settings.host) == (3, "127.0.0.2")


def test_the_environment_can_name_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODELS_DIR", "/a, /b")
    monkeypatch.setenv("HEADRACE_VOLUMES", "/nvme0:4GiB,/nvme1")
    settings = Settings.load()
    assert settings.models_dir == (Path("/a"), Path("/b"))
    assert settings.volume_list == ("/nvme0:4GiB", "/nvme1")


def test_paths_do_not_depend_on_where_the_daemon_stands() -> None:
    settings = Settings.load(data_dir=Path("somewhere"), models_dir=Path("~/models"))
    assert settings.data_dir == Path.cwd() / "somewhere"
    assert settings.models_dir == (Path.home() / "models",)


@pytest.mark.parametrize("line", ["prot = 1", 'port = "high"', 'device = "tpu"', "port = 70000",
                                  'volumes = "/nvme:12parsecs"'])  # fmt: skip
def test_a_wrong_setting_is_refused_by_its_name(tmp_path: Path, line: str) -> None:
    path = tmp_path / "headrace.toml"
    path.write_text(line)
    with pytest.raises(ValidationError, match=line.split()[0]):
        Settings.load(path)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings.load().port = 1


def test_a_wrong_size_is_told_in_our_words_alone() -> None:
    with pytest.raises(CliError, match="wrong: host_bytes: '20XB' is not a size; wanted bytes"):
        load_settings(None, host_bytes="20XB")
