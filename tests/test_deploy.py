"""What is deployed is well-formed, and speaks of settings, metrics and versions that there are."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from fakes_daemon import FakeDaemon
from headrace.service.metrics import Metrics
from headrace.service.settings import Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKER = ROOT / "docker"


def run(*command: str | Path) -> str:
    """What a checker says; AssertionError when it finds fault."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def has(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not here")


def test_the_dockerfile_is_clean() -> None:
    run(Path(sys.executable).with_name("hadolint"), DOCKER / "Dockerfile")


def test_the_compose_file_is_one() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    run(checker, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


@has("systemd-analyze")
def test_the_unit_is_one(tmp_path: Path) -> None:
    unit = (DEPLOY / "headrace.service").read_text()
    assert "/opt/headrace/bin/headrace" in unit
    copy = tmp_path / "headrace.service"
    copy.write_text(unit.replace("/opt/headrace/bin/headrace", "/bin/true"))
    assert "headrace.service" not in run("systemd-analyze", "verify", copy)


@has("promtool")
def test_rules_and_scrapes_are_what_prometheus_reads() -> None:
    run("promtool", "check", "rules", DEPLOY / "prometheus" / "alerts.yaml")
    config = DEPLOY / "prometheus" / "prometheus.yaml"
    run("promtool", "check", "config", "--syntax-only", config)


def test_alerts_are_about_metrics_that_there_are(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    used = set(re.findall(r"headrace_\w+", text))
    source = (ROOT / "service" / "metrics.py").read_text()
    made = set(re.findall(r'"(headrace_\w+)"', source))
    assert {name.removesuffix("_total") for name in used} <= made
    Metrics(FakeDaemon(tmp_path))  # and no two have one name


def test_settings_of_image_and_compose_file_are_settings() -> None:
    texts = [(DOCKER / "Dockerfile").read_text(), (DEPLOY / "compose.yaml").read_text()]
    named = {name for text in texts for name in re.findall(r"\bHEADRACE_(\w+)(?:=|: )", text)}
    assert named and named <= {name.upper() for name in Settings.model_fields}
    example = tomllib.loads((DEPLOY / "config.example.toml").read_text())
    assert set(example) <= set(Settings.model_fields)


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOST_BYTES", "")
    assert Settings.load(None).host_bytes is None


@pytest.mark.parametrize("variant", ["cuda", "cpu"])
def test_the_locks_hold_what_the_project_needs(variant: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["gguf"]]
    needed += extras["gds"] if variant == "cuda" else []
    locked = locked_versions(DOCKER / f"lock-{variant}.txt")
    for text in needed:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"python_version": "3.11"}):
            found = locked[wanted.name.lower().replace("_", "-")]
            assert wanted.specifier.contains(found, prereleases=True), f"{text}: {found} is locked"
    pinned = Requirement((ROOT / "constraints.txt").read_text().split("\n")[1])
    assert pinned.specifier.contains(Version(locked["torch"].base_version))


def locked_versions(path: Path) -> dict[str, Version]:
    """The version of every package in a lock file, each with a hash."""
    found = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            name, version, digest = re.fullmatch(r"(\S+)==(\S+) --hash=(\S+)", line).groups()  # type: ignore[union-attr]
            assert digest.startswith("sha256:")
            found[name.replace("_", "-")] = Version(version)
    return found


def test_a_container_is_given_time_to_commit() -> None:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert service["read_only"], name
        assert service["user"] != "0", name
        if name.startswith("headrace"):
            assert service["stop_grace_period"] == "15m" and service["ulimits"]["memlock"] == -1
