"""What users deploy is well formed, and agrees with the product and with itself."""

import re
import shutil
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from compose_spec import PyCompose
from packaging.requirements import Requirement
from packaging.version import Version
from promql_parser import parse as parse_promql

from headrace.service.contract import Daemon
from headrace.service.jobs import EventRecord
from headrace.service.metrics import PHASES, STALLS, Metrics
from headrace.service.settings import Settings
from headrace.service.systemd import EXTENSION_SECONDS

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
SERVICES = ("gpu", "gds", "cpu")
LOCKS = {"cuda": ("gguf", "gds"), "cpu": ("gguf",)}


def compose() -> dict[str, Any]:
    """The compose file with its merges, and with something in the place of each variable."""
    text = ROOT.joinpath("deploy", "compose.yaml").read_text(encoding="utf-8")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return cast(dict[str, Any], yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]*\}", r"/srv/\1", text)))


def unit() -> dict[str, str]:
    """The settings of the systemd unit; each occurs once."""
    text = ROOT.joinpath("deploy", "headrace.service").read_text(encoding="utf-8")
    pairs = re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: keyword and the rest, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text(encoding="utf-8"))
    lines = [line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#")]
    return [(words[0], words[1]) for words in lines if words]


def last(keyword: str) -> str:
    return [rest for word, rest in instructions() if word == keyword][-1]


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_as_no_one_in_particular_and_is_told_to_stop_gently() -> None:
    assert last("USER") == "10001:10001" and last("STOPSIGNAL") == "SIGTERM"
    assert "/livez" in last("HEALTHCHECK") and last("ENTRYPOINT") == '["headrace"]'


def test_the_image_sets_only_what_the_daemon_reads() -> None:
    named = re.findall(r"HEADRACE_(\w+)=", " ".join(rest for _, rest in instructions()))
    assert named and {name.lower() for name in named} <= Settings.model_fields.keys()


def test_the_build_context_holds_what_is_copied_and_nothing_else() -> None:
    ignore = ROOT.joinpath("docker", "Dockerfile.dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    kept = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        re.sub(r"build|\$\{VARIANT\}", "*", path)
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for path in rest.split()[:-1]
    }
    assert kept == copied
    assert all(list(ROOT.glob(pattern)) for pattern in kept)


@pytest.mark.parametrize("variant", LOCKS)
def test_a_lock_pins_what_the_project_asks_for(variant: str) -> None:
    pinned = read_lock(variant)
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"]]
    for extra in LOCKS[variant]:
        texts += project["optional-dependencies"][extra]
    for wanted in map(Requirement, texts):
        assert pinned[wanted.name] in wanted.specifier, f"{wanted}: make lock"
    (torch,) = re.findall(r"^torch==(.*)$", ROOT.joinpath("constraints.txt").read_text(), re.M)
    assert pinned["torch"].public == torch and (pinned["torch"].local == "cpu") == (
        variant == "cpu"
    )


@pytest.mark.parametrize("variant", [*LOCKS, "build"])
def test_every_file_of_a_lock_has_a_hash(variant: str) -> None:
    text = ROOT.joinpath("docker", f"requirements-{variant}.lock").read_text()
    blocks = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(read_lock(variant)) and "://" not in text
    assert all("--hash=sha256:" in block for block in blocks)


def read_lock(variant: str) -> dict[str, Version]:
    text = ROOT.joinpath("docker", f"requirements-{variant}.lock").read_text()
    return {
        name: Version(version) for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)
    }


def test_the_image_without_cuda_has_no_cuda_library() -> None:
    known = {"nvidia-ml-py"}
    assert not {name for name in read_lock("cpu") if name.startswith("nvidia-")} - known


def test_the_compose_file_is_one() -> None:
    spec = compose()
    plain = {key: value for key, value in spec.items() if not key.startswith("x-")}
    parsed = PyCompose.from_yaml(yaml.safe_dump(plain))
    parsed.validate()
    assert set(parsed.service_names()) == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_shut_in_and_loses_nothing(name: str) -> None:
    service = compose()["services"][name]
    assert service["profiles"] == [name]  # chosen by name: never two at once by accident
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service and "user" not in service
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    mounts = {mount["target"]: mount for mount in service["volumes"] if isinstance(mount, dict)}
    assert "data:/data" in service["volumes"] and "data" in compose()["volumes"]
    assert mounts["/models"]["read_only"] and not mounts["/volume"].get("read_only")
    assert all(mount["bind"] == {"create_host_path": False} for mount in mounts.values())


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_built_as_the_variant_that_its_profile_needs(name: str) -> None:
    service = compose()["services"][name]
    variant = "cpu" if name == "cpu" else "cuda"
    index = {"TORCH_CPU": ""} if name == "cpu" else {}  # named by who builds it
    assert service["build"]["args"] == {"VARIANT": variant, **index}
    assert service["image"] == f"headrace:{variant}" and ("deploy" in service) == (name != "cpu")


def test_only_gpudirect_storage_gets_more_rights() -> None:
    services = compose()["services"]
    assert {name: service.get("cap_add") for name, service in services.items()} == {
        "gpu": None,
        "gds": ["IPC_LOCK"],
        "cpu": None,
    }
    assert services["gds"]["environment"] == {"NVIDIA_GDS": "enabled"}
    assert "/run/udev:/run/udev:ro" in services["gds"]["volumes"]


def test_both_ways_to_run_give_the_same_time_for_a_commit() -> None:
    minutes = {
        int(s["stop_grace_period"].removesuffix("m")) for s in compose()["services"].values()
    }
    (minute,) = minutes
    assert unit()["TimeoutStopSec"] == f"{minute}min"
    assert timedelta(minutes=minute) > timedelta(seconds=EXTENSION_SECONDS)


def test_the_unit_expects_what_the_daemon_does() -> None:
    found = unit()
    assert (found["Type"], found["KillSignal"], found["KillMode"]) == ("notify", "SIGTERM", "mixed")
    assert found["OOMPolicy"] == "continue"  # a killed worker does not take the API along
    assert found["LimitMEMLOCK"] == "infinity" and found["SuccessExitStatus"] == "143"
    assert "PrivateDevices" not in found and "MemoryDenyWriteExecute" not in found


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = ROOT.joinpath("deploy", "headrace.service").read_text(encoding="utf-8")
    copy = tmp_path / "headrace.service"
    # The program and the user are the reader's to install; everything else is judged.
    copy.write_text(re.sub(r"^ExecStart=.*", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "headrace" in line]
    assert not ours, done.stderr


def exported() -> set[str]:
    """The names of the samples of a daemon with a running job that has made a step."""
    job = SimpleNamespace(
        id="ftjob-1",
        engine={"step": 1, "total_steps": 2, "tokens_per_s": 3.0, "loss": 1.0, "eval_loss": 1.0},
    )
    journal = SimpleNamespace(job_counts=dict, jobs=lambda status: [job])
    status = {"worker": {"restarts": 0}}
    daemon = SimpleNamespace(journal=journal, ready=lambda: [], status=lambda: status)
    metrics = Metrics(cast(Daemon, daemon))
    data = {"step_seconds": 1.0, "links": {"nvme_read": {}}}
    metrics.observe(cast(EventRecord, SimpleNamespace(type="metrics", data=data)))
    text = metrics.render().decode()
    assert all(f'="{label}"' in text for label in (*PHASES, *STALLS))
    return set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE)) - {"HELP", "TYPE"}


def rules() -> list[dict[str, Any]]:
    text = ROOT.joinpath("deploy", "prometheus", "alerts.yml").read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_alerts_ask_for_metrics_that_the_daemon_exports() -> None:
    names = exported()
    for rule in rules():
        asked = set(re.findall(r"\bheadrace_\w+", str(parse_promql(rule["expr"]))))
        assert asked <= names, f"{rule['alert']}: {asked - names}"
    assert len({rule["alert"] for rule in rules()}) == len(rules()) > 5


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "what_to_do"}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not here")
def test_prometheus_understands_the_scrape_and_the_alerts(tmp_path: Path) -> None:
    folder = ROOT / "deploy" / "prometheus"
    tmp_path.joinpath("token").touch()
    text = folder.joinpath("prometheus.yml").read_text(encoding="utf-8")
    text = text.replace("/etc/prometheus/headrace.token", str(tmp_path / "token"))
    tmp_path.joinpath("prometheus.yml").write_text(text)
    shutil.copy(folder / "alerts.yml", tmp_path)
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_alerts_and_the_daemons_metrics() -> None:
    text = ROOT.joinpath("deploy", "prometheus", "prometheus.yml").read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    (scrape,) = config["scrape_configs"]
    assert config["rule_files"] == ["alerts.yml"] and scrape["metrics_path"] == "/metrics"
    up = next(rule for rule in rules() if rule["alert"] == "HeadraceDown")
    assert f'job="{scrape["job_name"]}"' in up["expr"]
