"""A scripted engine for the worker's tests: steps, commits, and the ways in which a run can die.

The script is `script.json` in the run's folder or in the data directory above it:
`{"steps": 6, "step_seconds": 0.02, "do": {"3": "kill"}}`. What stands under `do` happens once,
when that step comes up first, whatever process comes up to it. `work` makes a step compute.
"""

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.engine import (
    OUTCOME_OF,
    RunEvent,
    RunResult,
    StopReason,
    Traffic,
    TrainConfig,
    Watch,
)
from headrace.service.prepare_request import PrepareRequest, Refused


def run_job(
    config: TrainConfig,
    *,
    run_dir: Path,
    name: str,
    emit: Callable[[RunEvent], None],
    poll: Callable[[], StopReason | None],
    watch: Watch = lambda look: None,
) -> RunResult:
    """Train a number that depends on the steps done, so that a lost or doubled step shows."""
    script = read_script(run_dir)
    started = time.monotonic()
    watch(lambda: read_at_a_gigabyte_a_second(time.monotonic() - started, script))
    total = int(script.get("steps", 4))
    committed = run_dir.parent / name / "committed.json"
    state = json.loads(committed.read_text()) if committed.exists() else {"step": 0, "weight": 1}
    emit(RunEvent(type="phase", message="training"))
    for step in range(state["step"] + 1, total + 1):
        if reason := poll():
            return _result(OUTCOME_OF[reason], state, total)
        act_once(script, step, run_dir)
        time.sleep(script.get("step_seconds", 0.01))
        sum(range(script.get("work", 0)))
        state = {"step": step, "weight": state["weight"] * 3 + step}
        _write(committed, state)
        emit(
            RunEvent(
                type="metrics", message=f"step {step}", step=step, data=step_report(step, total)
            )
        )
        emit(RunEvent(type="commit", message="committed", step=step, durable=True))
        if step == script.get("tells"):
            for event in (_samples(step), _row_losses(step)):
                emit(event)
        if step == script.get("checkpoint"):
            emit(_checkpoint(run_dir, step))
    export = run_dir / "export"
    export.mkdir(exist_ok=True)
    (export / "config.json").write_text("{}")
    return _result("succeeded", state, total, export_dir=str(export))


def read_at_a_gigabyte_a_second(seconds: float, script: dict[str, Any]) -> Traffic:
    """What such a run moves in that time, on the volumes that the script names."""
    read = int(1e9 * seconds)
    links = {"nvme_read": read, "nvme_write": 0, "h2d": read, "d2h": 0}
    per_volume = {"nvme_read": read, "nvme_write": 0}
    return Traffic(links=links, volumes=dict.fromkeys(script.get("volumes", ()), per_volume))


def prepare(request: PrepareRequest, emit: Callable[[RunEvent], object]) -> TrainConfig:
    """Prepare nothing, for as long and with the end that the script wants."""
    job_dir = Path(request.job_dir)
    script = read_script(job_dir)
    emit(RunEvent(type="phase", message="tokenizing"))
    time.sleep(script.get("prepare_seconds", 0))
    action = script.get("prepare")
    if action == "refuse":
        raise Refused(ValueError("line 7: no assistant turn"), "training_file")
    if action == "no_space":
        raise Refused(OSError(errno.ENOSPC, "no room for the state"), None)
    if action == "kill" or (action == "kill_once" and not (job_dir / "killed").exists()):
        (job_dir / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "fill":
        hoard = [bytearray(1 << 20) for _ in range(512)]
        time.sleep(60 + len(hoard))
    config = {"model": request.model_dir, "dataset": str(job_dir), **request.config}
    return TrainConfig.from_dict({**config, "microbatch_rows": 1})


def read_script(run_dir: Path) -> dict[str, Any]:
    """The script of that run; an empty one when there is none."""
    for place in (run_dir, run_dir.parent.parent):
        if (place / "script.json").exists():
            script: dict[str, Any] = json.loads((place / "script.json").read_text())
            return script
    return {}


def act_once(script: dict[str, Any], step: int, run_dir: Path) -> None:
    """Do what the script wants of this step, unless that was done before."""
    action = script.get("do", {}).get(str(step))
    marker = run_dir / f"did-{step}"
    if action is None or (marker.exists() and action != "kill_always"):
        return
    marker.touch()
    if action.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "fail":
        raise ValueError("the script wants a failure")
    elif action == "hang":
        time.sleep(3600)
    elif action == "no_space":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif action == "device_lost":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif action == "torn":
        with (run_dir / "events.jsonl").open("ab") as file:
            file.write(b'{"seq": 99, "type": "met')
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise ValueError(action)


def step_report(step: int, total: int) -> dict[str, Any]:
    """A step report as its JSON: half a second, of which 0.3 waiting for reads."""
    links = {"nvme_read": {"payload_bytes": 1000}, "nvme_write": {"payload_bytes": 500}}
    return {
        "step": step,
        "total_steps": total,
        "epoch": step / total,
        "loss": 4.0 / step,
        "grad_norm": 1.0,
        "learning_rate": 1e-4,
        "skipped": False,
        "num_tokens": 100,
        "num_computed_tokens": 125,
        "num_trained_tokens": 50,
        "token_accuracy": 0.5,
        "step_seconds": 0.5,
        "forward_seconds": 0.1,
        "backward_seconds": 0.4,
        "optimizer_seconds": 0.0,
        "commit_seconds": 0.0,
        "stall_read_seconds": 0.3,
        "stall_write_seconds": 0.0,
        "links": links,
    }


def _samples(step: int) -> RunEvent:
    """A text of a validation row, cut and not at its end."""
    text = {
        "source": "validation row 3", "row": 2, "prompt": "Which way?", "prompt_tokens_cut": 4,
        "completion": "Down to the wheel", "num_tokens": 4, "ended": "length", "expected": "Down.",
    }  # fmt: skip
    data = {"samples": [text], "temperature": 0.0}
    return RunEvent(type="samples", message="1 sample text", step=step, data=data)


def _row_losses(step: int) -> RunEvent:
    """One row far above the others."""
    row = {"row": 6, "file": "rows.jsonl", "line": 7, "item": None, "losses": [9.5, None]}
    none: dict[str, Any] = {"count": 0, "rows": []}
    data = {"num_rows": 50, "medians": [2.0, 1.5], "above": {"count": 1, "rows": [row]},
            "below": none, "not_finite": none}  # fmt: skip
    return RunEvent(type="row_losses", message="1 far above", step=step, data=data)


def _checkpoint(run_dir: Path, step: int) -> RunEvent:
    path = run_dir / "checkpoints" / f"step-{step}"
    path.mkdir(parents=True, exist_ok=True)
    data = {"path": str(path), "loss": 0.5}
    return RunEvent(type="checkpoint", message="saved", step=step, data=data, durable=True)


def _result(
    outcome: Any, state: dict[str, int], total: int, *, export_dir: str | None = None
) -> RunResult:
    return RunResult(
        outcome=outcome,
        step=state["step"],
        total_steps=total,
        trained_tokens=50 * state["step"],
        final_loss=1.0,
        final_eval_loss=None,
        export_dir=export_dir,
    )


def _write(path: Path, values: dict[str, int]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(values))
    temporary.replace(path)


def undisturbed_weight(num_steps: int) -> int:
    """What the weight is after so many steps."""
    value = 1
    for step in range(1, num_steps + 1):
        value = value * 3 + step
    return value
