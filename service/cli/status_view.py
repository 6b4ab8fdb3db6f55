"""What people read of the daemon and of a job: `headrace status`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .output import console, human_bytes, human_seconds, print_table

Row = list[str]
UNKNOWN = "–"
LONG = ("Learning", "Run")  # sections of many short values
SHORT = 24  # characters of a value that two stand beside each other with


def show_status(status: Mapping[str, Any]) -> None:
    """The daemon: whether it can work, the box, the running job, and who waits."""
    out = console()
    up = status.get("uptime_seconds")
    word = "" if up is None else f", up {human_seconds(up)}"
    worker = status.get("worker") or {}
    out.print(f"Headrace {status.get('version', '')}{word}; worker {_worker(worker)}", markup=False)
    for reason in status.get("not_ready") or ():
        out.print(f"no job can run now: {reason}", style="yellow", markup=False)
    out.print()
    print_table(["box", "use", ""], list(_box(status)), empty="nothing is known of the box")
    out.print()
    running = status.get("running")
    columns = ["running", "model", "step", "loss", "tokens/s", "left", "held up by"]
    print_table(columns, [_run(running)] if running else [], empty="no job runs")
    out.print()
    columns = ["next", "job", "model", "priority", "starts", "ends"]
    print_table(columns, [_waits(one) for one in status.get("queue") or ()], empty="none waits")
    counts = ", ".join(f"{count} {state}" for state, count in (status.get("jobs") or {}).items())
    if counts:
        out.print(f"\njobs: {counts}", markup=False)


def show_job(job: Mapping[str, Any]) -> None:
    """One job: how far it is, what it waits for, what it was asked, what came of it.

    In sections, each with a title but the first; what has no value is left out.
    """
    out = console()
    for title, rows in _sections(job):
        told = [[name, text] for name, text in rows if text]
        if not told:
            continue
        if title:
            out.print(f"\n[bold]{title}[/]")
        print_table([], _side_by_side(told) if title in LONG else told, empty="")


def steps_of(job: Mapping[str, Any]) -> str:
    """'3/9', or nothing before a job knows how many steps it has."""
    engine = job.get("engine") or {}
    total = engine.get("total_steps")
    return f"{engine.get('step') or 0}/{total}" if total else ""


def result_of(job: Mapping[str, Any]) -> str:
    """The model that a job made, or why it made none."""
    return job.get("fine_tuned_model") or (job.get("error") or {}).get("message") or ""


def _worker(worker: Mapping[str, Any]) -> str:
    words = [str(worker.get("state", "not known"))]
    if worker.get("job_id"):
        words.append(f"with {worker['job_id']}")
    if worker.get("restarts"):
        times = "once" if worker["restarts"] == 1 else f"{worker['restarts']} times"
        words.append(f"started again {times}")
    if worker.get("last_death"):
        words.append(f"last died of: {worker['last_death']}")
    return ", ".join(words)


def _box(status: Mapping[str, Any]) -> Iterator[Row]:
    budgets = status.get("budgets") or {}
    device = status.get("device") or {}
    gpus = device.get("gpus") or ()
    for gpu in gpus:
        notes = [gpu.get("name"), _number(gpu.get("busy_share"), "{:.0%} busy"),
                 _number(gpu.get("temperature_celsius"), "{:.0f} °C"),
                 _budget(budgets.get("device_bytes"))]  # fmt: skip
        yield ["GPU", _use(gpu), _joined(notes)]
    if not gpus and device:
        yield ["device", str(device.get("type")), "the driver shows no GPU"]
    if memory := status.get("memory"):
        yield ["memory", _use(memory), _joined([_budget(budgets.get("host_bytes"))])]
    for volume in status.get("storage") or ():
        yield [f"volume {volume.get('path')}", _use(volume), _joined(_of_volume(volume))]
    if disk := status.get("disk"):
        yield [f"data {disk.get('path')}", _use(disk), "journal, uploads, exports"]


def _of_volume(volume: Mapping[str, Any]) -> list[str | None]:
    health, speed = volume.get("health") or {}, volume.get("calibration") or {}
    traffic = volume.get("traffic") or {}
    rates = {"reads": "read_bytes_per_second", "writes": "write_bytes_per_second"}
    return [
        volume.get("active"),
        _number(speed.get("mixed_bytes_per_second"), "can do {}/s mixed", human_bytes),
        *(_number(traffic.get(name), f"{word} {{}}/s now", human_bytes)
          for word, name in rates.items()),
        _number(health.get("percentage_used"), "{:.0f} % worn"),
        _number(health.get("temperature_celsius"), "{:.0f} °C"),
    ]  # fmt: skip


def _use(part: Mapping[str, Any]) -> str:
    free, total = part.get("free_bytes"), part.get("total_bytes")
    if free is None or total is None:
        return UNKNOWN
    return f"{human_bytes(total - free)} of {human_bytes(total)}"


def _budget(num_bytes: int | None) -> str:
    return "no budget" if num_bytes is None else f"jobs get {human_bytes(num_bytes)}"


def _run(job: Mapping[str, Any]) -> Row:
    engine = job.get("engine") or {}
    return [
        str(job.get("id")),
        str(job.get("model")),
        steps_of(job) or str(engine.get("phase") or ""),
        _number(engine.get("loss"), "{:.4f}") or "",
        _number(engine.get("tokens_per_s"), "{:.4g}") or "",
        _number(engine.get("eta_s"), "{}", human_seconds) or "",
        str(engine.get("bottleneck") or ""),
    ]


def _waits(place: Mapping[str, Any]) -> Row:
    return [
        str(place.get("position", "")),
        str(place.get("id")),
        str(place.get("model")),
        str(place.get("priority", 0)),
        _clock(place.get("estimated_start")) or UNKNOWN,
        _clock(place.get("estimated_finish")) or UNKNOWN,
    ]


def _sections(job: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
    engine = job.get("engine") or {}
    phase = engine.get("phase")
    is_running = job.get("status") == "running"
    yield (
        "",
        [
            ("job", str(job.get("id"))),
            ("status", f"{job.get('status')}{f', {phase}' if phase else ''}"),
            ("model", str(job.get("model"))),
            ("result", result_of(job)),
            ("go on", f"headrace resume {job.get('id')}" if job.get("status") == "paused" else ""),
        ],
    )
    yield "Progress", [
        ("step", steps_of(job)),
        ("loss", _number(engine.get("loss"), "{:.4f}") or ""),
        ("validation loss", _number(engine.get("valid_loss"), "{:.4f}") or ""),
        ("tokens/s", _number(engine.get("tokens_per_s"), "{:.4g}") or ""),
        ("left", _number(engine.get("eta_s"), "{}", human_seconds) or ""),
        # of a job that does not run it would be that of the last step
        ("held up by", str(engine.get("bottleneck") or "") if is_running else ""),
        ("place in queue", str(engine.get("queue_position") or "")),
        ("waits for", str(engine.get("waits_for") or "")),
        ("starts", _clock(engine.get("estimated_start"))),
        *((name.removesuffix("_at"), _clock(job.get(name) or engine.get(name)))
          for name in ("created_at", "started_at", "finished_at")),
    ]  # fmt: skip
    yield (
        "Files",
        [
            ("training rows", str(job.get("training_file") or "")),
            ("validation rows", str(job.get("validation_file") or "")),
            *(("result", str(file)) for file in job.get("result_files") or ()),
        ],
    )
    method = job.get("method") or {}
    kind = method.get("type", "supervised")
    asked = (method.get(kind) or {}).get("hyperparameters")
    yield "Learning", [("method", str(kind)), *_named(asked)]
    yield "Run", _named({"seed": job.get("seed"), **(engine.get("settings") or {})})
    yield "Metadata", _named(job.get("metadata"))
    yield "Warnings", [("–", str(warning)) for warning in engine.get("warnings") or ()]
    yield "More", [("log", f"headrace logs {job.get('id')}"), ("all of it", "--json")]


def _side_by_side(rows: Sequence[Row]) -> list[Row]:
    """Pairs of a name and a value in two columns, read downwards; where one is long, in one."""
    if max(len(text) for _, text in rows) > SHORT:
        return list(rows)
    half = -(-len(rows) // 2)
    right = [*rows[half:], ["", ""]]
    return [[*left, "  ", *right[i]] for i, left in enumerate(rows[:half])]


def _named(values: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What has a value, each by its path: `adapter.rank`."""
    return [(name, str(value)) for name, value in _leaves(values or {})]


def _leaves(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = {str(i): item for i, item in enumerate(value)}  # named as in a refusal
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{within}{name}.")
        elif value not in (None, "", []):
            yield within + name, value


def _joined(words: Sequence[str | None]) -> str:
    return ", ".join(word for word in words if word)


def _number(value: Any, form: str, shown: Any = None) -> str | None:
    return None if value is None else form.format(shown(value) if shown else value)


def _clock(seconds: float | None) -> str:
    """The time of day here; of another day with its date."""
    if seconds is None:
        return ""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)
