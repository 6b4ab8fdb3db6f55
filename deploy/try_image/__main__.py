"""Build the image and run the compose file with a real engine, as users do, and try it.

As root: podman builds docker/Dockerfile (the variant without CUDA), podman-compose starts
deploy/compose.yaml, a real model is fine-tuned over REST, the container is stopped in the middle of
a step and made anew, and the job must go on. The base image is made from Debian's packages.
Options of `podman build` follow `--`, for what only this machine has (a mirror, a certificate).
"""

import argparse
import json
import resource
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from deploy.demo.__main__ import STATE_BYTES_PER_PARAM, TIER_SHARE, find_model

from headrace.engine import read_model_spec, write_demo_data
from headrace.service.cli.output import console, print_table
from headrace.service.client import Client

from . import trial
from .adapt import Adapted, adapt, seconds
from .engine import Engine

REPOSITORY = Path(__file__).parent.parent.parent
PROFILE, TAG = "cpu", "headrace:cpu"
USER = 10001
PORT = 18400
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
}
NUM_PROCESSES = 1 << 15
NOT_RUN = (
    "docker itself: podman with runc built and ran the image, podman-compose read compose.yaml",
    "the base image of Docker Hub: its stand-in is debootstrap's minbase of the same release",
    "the profiles gpu and gds: no GPU here; the variant with CUDA was not built",
    "restart policies, and health checks by the clock (podman leaves both to systemd)",
)


def main() -> int:
    """The whole trial; 0 when everything was as wanted."""
    options = parse_arguments()
    home = options.home.absolute()
    hard = {name: resource.getrlimit(which)[1] for name, which in LIMITS.items()}
    # The engine's helpers have a lower limit of processes than this one; more cannot be granted.
    hard["nproc"] = NUM_PROCESSES if hard["nproc"] < 0 else min(hard["nproc"], NUM_PROCESSES)
    engine = Engine(home / "engine", hard_limits=hard)
    begun = time.monotonic()
    engine.make_base()
    engine.build(REPOSITORY, tag=TAG, options=options.build_options)
    build_seconds = time.monotonic() - begun
    setting = lay_out(home / "host", options.model)
    model = next(path for path in (setting / "models").iterdir())
    service = shipped_service()
    adapted = adapt(service, name=PROFILE, hard_limits=hard, environment=budgets(model))
    findings = trial.Findings()
    try:
        figures = run(engine, setting, adapted, service, findings, max_steps=options.steps)
    finally:
        tidy(engine, setting, adapted)
    show(findings, adapted)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m deploy.try_image",
        "engine": engine.podman("--version"),
        "model": model.name,
        "build_seconds": round(build_seconds, 1),
        **figures,
        "findings": [{"name": n, "good": g, "seen": s} for n, g, s in findings.rows],
        "differences": adapted.differences,
        "not_run": NOT_RUN,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if findings.good else 1


def parse_arguments() -> argparse.Namespace:
    """The options of the trial."""
    parser = argparse.ArgumentParser(prog="python -m deploy.try_image", description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".try-image"), help="images and state")
    parser.add_argument("--model", type=Path, help="a model's directory; default: the demo's")
    parser.add_argument("--steps", type=int, default=8, help="of the job")
    parser.add_argument("--json", type=Path, help="where the result is written, too")
    parser.add_argument("build_options", nargs="*", help="options of podman build, after --")
    return parser.parse_args()


def lay_out(host: Path, model: Path | None) -> Path:
    """The directories that a user would have: models to read, a volume that user 10001 owns."""
    shutil.rmtree(host, ignore_errors=True)
    models, volume = host / "models", host / "volume"
    models.mkdir(parents=True)
    volume.mkdir()
    shutil.chown(volume, USER, USER)
    if model:
        shutil.copytree(model, models / model.name)
    else:
        find_model(None, models)
    return host


def shipped_service() -> dict[str, Any]:
    """The service of the compose file that the trial starts."""
    text = REPOSITORY.joinpath("deploy", "compose.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["services"][PROFILE])


def budgets(model: Path) -> dict[str, str]:
    """Memory for three quarters of the state, so that it streams from the volume."""
    size = int(read_model_spec(model).num_params * STATE_BYTES_PER_PARAM * TIER_SHARE)
    return {"HEADRACE_DEVICE_BYTES": str(size), "HEADRACE_HOST_BYTES": str(size)}


def compose(engine: Engine, setting: Path, adapted: Adapted, *arguments: str) -> None:
    """A command of compose over the shipped file and this machine's limits."""
    here = setting / "here.yaml"
    here.write_text(yaml.safe_dump(adapted.overrides))
    variables = {
        "HEADRACE_VOLUME": str(setting / "volume"),
        "HEADRACE_MODELS": str(setting / "models"),
        "HEADRACE_PORT": str(PORT),
    }
    files = (REPOSITORY / "deploy" / "compose.yaml", here)
    engine.compose(files, *arguments, profile=PROFILE, variables=variables)


def run(
    engine: Engine,
    setting: Path,
    adapted: Adapted,
    service: dict[str, Any],
    findings: trial.Findings,
    *,
    max_steps: int,
) -> dict[str, Any]:
    """Start, look, train, stop, start again; the figures that were measured."""
    url = f"http://127.0.0.1:{PORT}"
    grace = seconds(service["stop_grace_period"])
    compose(engine, setting, adapted, "up", "-d")
    ready = trial.await_ready(url)
    trial.look_inside(engine, findings)
    token = engine.podman("exec", trial.CONTAINER, "cat", "/data/token")
    train = write_demo_data(setting / "rows").train
    model = next(path.name for path in (setting / "models").iterdir())
    with Client(url, token=token) as client:
        job = trial.submit(client, model=model, train=train, max_steps=max_steps)
        seen, stop_seconds = trial.stop_in_the_middle(
            client, job, stop=lambda: compose(engine, setting, adapted, "stop"), after=2
        )
    code = engine.inspect(trial.CONTAINER)["State"]["ExitCode"]
    took = f"{stop_seconds:.1f} s of {grace} s"
    findings.add("SIGTERM: committed and gone in time", stop_seconds < grace, took)
    findings.add("ended by itself, not killed", code == 143, f"exit status {code}")
    compose(engine, setting, adapted, "down")  # the container goes, the volumes stay
    compose(engine, setting, adapted, "up", "-d")
    trial.await_ready(url)
    with Client(url, token=token) as client:
        trial.check_resumed(client, job, seen=seen, max_steps=max_steps, findings=findings)
    command = ("headrace", "export", job, "/data/tuned", "--token-file", "/data/token")
    export = engine.exits("exec", trial.CONTAINER, *command)
    findings.add("the result is exported", export == 0, f"exit status {export}")
    size = int(engine.podman("image", "inspect", TAG, "--format", "{{.Size}}"))
    return {
        "ready_seconds": round(ready, 1),
        "stop_seconds": round(stop_seconds, 1),
        "image_bytes": size,
    }


def tidy(engine: Engine, setting: Path, adapted: Adapted) -> None:
    """Remove container and volumes; the images stay, for the next time."""
    compose(engine, setting, adapted, "down", "-v", "-t", "5")
    shutil.rmtree(setting, ignore_errors=True)


def show(findings: trial.Findings, adapted: Adapted) -> None:
    """The table, and what it does not say."""
    marks = {True: "[green]yes[/]", False: "[red]NO[/]"}
    rows = [[marks[good], name, seen] for name, good, seen in findings.rows]
    print_table(["", "wanted", "seen"], rows, empty="")
    for title, lines in (("different here", adapted.differences), ("not run", NOT_RUN)):
        console().print(f"{title}:", *(f"\n  {line}" for line in lines), markup=False)


if __name__ == "__main__":
    sys.exit(main())
