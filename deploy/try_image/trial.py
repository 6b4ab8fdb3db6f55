"""The trial of a running container: what it may do, a job stopped in the middle, a job resumed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.service.client import Client, DaemonError

from .engine import Engine

CONTAINER = "headrace"
START_SECONDS = 180
STEP_SECONDS = 1200
DONE = ("succeeded", "failed", "cancelled")
NO_CAPABILITY = "0" * 16
# Whether the daemon can write there.
PATHS = {
    **dict.fromkeys(("/", "/etc", "/opt/headrace", "/run", "/models"), False),
    **dict.fromkeys(("/data", "/volume", "/tmp"), True),
}


@dataclass(kw_only=True)
class Findings:
    """What was looked at: name, whether it was as wanted, and what was seen."""

    rows: list[tuple[str, bool, str]] = field(default_factory=list)

    def add(self, name: str, good: bool, seen: object) -> None:
        """Note one finding."""
        self.rows.append((name, good, str(seen)))

    @property
    def good(self) -> bool:
        """Whether there are findings, and all are as wanted."""
        return bool(self.rows) and all(good for _, good, _ in self.rows)


def look_inside(engine: Engine, findings: Findings) -> None:
    """Who runs in the container, what it may write, and whether the engine finds it healthy."""
    lines = engine.podman("exec", CONTAINER, "cat", "/proc/self/status").splitlines()
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    everyone = ("sh", "-c", "cat /proc/[0-9]*/status | grep ^Uid: | cut -f2-")
    uids = set(engine.podman("exec", CONTAINER, *everyone).split())
    findings.add("user of every process", uids == {"10001"}, ", ".join(uids))
    sets = {status[name] for name in ("CapPrm", "CapEff", "CapBnd")}
    findings.add("no capability", sets == {NO_CAPABILITY}, ", ".join(sets))
    findings.add("no new privileges", status["NoNewPrivs"] == "1", status["NoNewPrivs"])
    findings.add("system call filter", status["Seccomp"] == "2", f"mode {status['Seccomp']}")
    for path, writable in PATHS.items():
        probe = f"{path.rstrip('/')}/.probe"
        code = engine.exits("exec", CONTAINER, "sh", "-c", f"touch {probe} 2>&1 && rm {probe}")
        can = "can" if writable else "cannot"
        findings.add(f"{can} write {path}", (code == 0) == writable, f"exit status {code}")
    code = engine.exits("exec", CONTAINER, "headrace", "doctor")
    findings.add("doctor finds nothing amiss", code == 0, f"exit status {code}")
    code = engine.exits("healthcheck", "run", CONTAINER)
    findings.add("the image's health check", code == 0, f"exit status {code}")


def wait_for(look: Callable[[], bool], what: str, *, seconds: float) -> None:
    """Look until it is so. SystemExit when it is not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if look():
                return
        except DaemonError:
            pass  # not up yet, or just going down
        time.sleep(0.2)
    raise SystemExit(f"not seen within {seconds:.0f} s: {what}")


def await_ready(url: str) -> float:
    """Seconds until the daemon takes jobs."""
    begun = time.monotonic()
    with Client(url) as client:
        wait_for(lambda: bool(client.call("GET", "/readyz")), "ready", seconds=START_SECONDS)
    return time.monotonic() - begun


def submit(client: Client, *, model: str, train: Path, max_steps: int) -> str:
    """Upload the rows and create the job; its id."""
    rows = client.upload(train)
    settings = {"batch_size": 4, "max_steps": max_steps, "n_epochs": 50, "learning_rate": 2e-4}
    method = {"type": "supervised", "supervised": {"hyperparameters": settings}}
    body = {"model": model, "training_file": rows["id"], "seed": 0, "method": method}
    return str(client.create_job(body)["id"])


def step_of(client: Client, job_id: str) -> int:
    """The newest step of a job."""
    return int(client.job(job_id)["engine"].get("step") or 0)


def stop_in_the_middle(
    client: Client, job_id: str, *, stop: Callable[[], None], after: int
) -> tuple[int, float]:
    """SIGTERM by the engine while a step is under way; the last step seen, and the seconds."""
    wait_for(lambda: step_of(client, job_id) >= after, f"step {after}", seconds=STEP_SECONDS)
    seen, begun = step_of(client, job_id), time.monotonic()
    stop()
    return seen, time.monotonic() - begun


def finish(client: Client, job_id: str) -> dict[str, Any]:
    """The job when it has come to its end."""
    wait_for(lambda: client.job(job_id)["status"] in DONE, "the job's end", seconds=STEP_SECONDS)
    return client.job(job_id)


def check_resumed(
    client: Client, job_id: str, *, seen: int, max_steps: int, findings: Findings
) -> None:
    """Every step is there once, and training went on from the commit that the stop left."""
    job = finish(client, job_id)
    findings.add("the job succeeded after the restart", job["status"] == "succeeded", job["status"])
    events = list(client.events(job_id))[::-1]
    steps = [event["step"] for event in events if event["kind"] == "metrics"]
    whole = steps == list(range(1, max_steps + 1))
    findings.add("every step once, none lost, none done again", whole, f"{len(steps)} steps")
    said = [event["message"] for event in events if "going on after step" in event["message"]]
    resumed_at = int("".join(filter(str.isdigit, said[0].split(",")[0]))) if said else 0
    findings.add("went on from the step in hand at SIGTERM", resumed_at >= seen > 0, said)
    losses = [event["data"]["loss"] for event in events if event["kind"] == "metrics"]
    findings.add("the loss fell", losses[-1] < losses[0], f"{losses[0]:.3f} to {losses[-1]:.3f}")
