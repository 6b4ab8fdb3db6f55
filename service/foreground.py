"""One job without a daemon: the same settling, preparing and running, in the foreground.

The job's folder is named by what is asked, files included. The same request again finds the
folder, and goes on from the last commit.
"""

import asyncio
import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.engine import RunEvent, RunResult, StopReason, TrainConfig
from headrace.storage import file_sha256

from .engine_process import DEFAULT_ENGINE, RunJob, limits_of, load_engine
from .errors import ApiError, did_you_mean
from .event_log import EventLog, EventReader
from .job_spec import Sources, prepare_request, resolve_job, within
from .job_state import drop_state
from .json_file import read_json, write_json
from .lockfile import LockFile
from .model_names import base_models
from .preparer import Preparer, accept, refusal_of
from .run_events import failure_event, result_event
from .run_settings import PLACEMENT
from .schemas import parse_create
from .settings import Settings
from .site import Site, probe_volumes
from .tracking import Trackers

Emit = Callable[[RunEvent], None]

UNSEEN = (*PLACEMENT, "integrations")  # of a request, by what names its job
MODEL_SUFFIXES = (".safetensors", ".gguf", ".json", ".jinja")


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreground:
    """How a run in the foreground ended, and the folder with its log, checkpoints and export."""

    result: RunResult
    job_dir: Path


def train_foreground(
    body: dict[str, Any],
    *,
    settings: Settings,
    model_path: Path | None = None,
    beside: Path | None = None,
    emit: Emit,
    engine: RunJob | None = None,
) -> Foreground:
    """Train the job of a create body whose files are local paths, sought in `beside` first.

    `model_path` takes the place of the name in the body, which may also be a path itself. The
    first Ctrl-C or SIGTERM finishes the step and commits, the second one ends the process. Call it
    in the main thread. ApiError for a request that cannot be done; LockHeld when this job runs
    already; whatever the engine raises when the run fails.
    """
    asked = parse_create(body).body()
    if "resume_from" in asked:
        message = "resume_from is of a daemon's jobs; here, name the model's directory."
        raise ApiError(400, message, param="resume_from", code="unsupported_field")
    sources = find_sources(asked, settings, model_path, beside)
    site = Site.of(settings)
    name = job_name(asked, sources, site)
    job_dir = settings.jobs_dir / name
    job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with LockFile(job_dir / "lock"):
        if (done := read_json(job_dir / "result.json")) and (job_dir / "export").exists():
            emit(RunEvent(type="message", message=f"this job has succeeded before, in {job_dir}"))
            return Foreground(result=RunResult(**done), job_dir=job_dir)
        probe_volumes(settings)
        if not (job_dir / "spec.json").exists():
            prepare(asked, sources, site, job_dir, settings.data_dir / "cache", emit)
        config = read_config(asked, site, job_dir)
        with (
            EventLog(job_dir / "events.jsonl") as events,
            Trackers(asked.get("integrations"), job_dir) as trackers,
            stop_on_signals() as poll,
        ):

            def tell(event: RunEvent) -> None:
                for one in (event, *trackers.offer(event)):
                    events.append(one)
                    emit(one)

            run = engine or load_engine(DEFAULT_ENGINE)
            limits = limits_of(config, job_dir, asked.get("limits"))

            def look() -> StopReason | None:
                return poll() or limits.check(tell)

            try:
                result = run(config, run_dir=job_dir, name=name, emit=tell, poll=look)
            except Exception as error:
                events.append(failure_event(error))
                raise
            tell(result_event(result))
        if result.outcome == "succeeded":
            write_json(job_dir / "result.json", result.to_dict())
            drop_state(config.volumes, name)
    return Foreground(result=result, job_dir=job_dir)


def find_sources(
    asked: Mapping[str, Any], settings: Settings, model_path: Path | None, beside: Path | None
) -> Sources:
    """The model's folder and the local files. ApiError for one that is not there."""
    validation = asked.get("validation_file")
    return Sources(
        model_dir=model_path.absolute() if model_path else find_model_dir(asked["model"], settings),
        training_file=find_file(asked["training_file"], "training_file", beside),
        validation_file=find_file(validation, "validation_file", beside) if validation else None,
        training_name=asked["training_file"],
        validation_name=validation or "",
    )


def find_model_dir(name: str, settings: Settings) -> Path:
    """A folder of a models directory, or a path; ApiError when it is neither."""
    known = {model.name: model.path for model in base_models(settings.models_dir)}
    if name in known:
        return known[name]
    if Path(name).exists():
        return Path(name).absolute()
    message = (
        f"Model {name!r} is neither a folder here nor in models_dir.{did_you_mean(name, known)} "
        "Name the daemon's --models-dir or --config, or the folder itself with --model."
    )
    raise ApiError(400, message, param="model", code="model_not_found")


def find_file(name: str, param: str, beside: Path | None) -> Path:
    """A local file; ApiError when there is none."""
    for home in [beside, Path()] if beside else [Path()]:
        if (home / name).is_file():
            return (home / name).absolute()
    raise ApiError(400, f"{param} {name!r} is not a file.", param=param, code="file_not_found")


def job_name(asked: Mapping[str, Any], sources: Sources, site: Site) -> str:
    """A name that is the same for the same request, files and place; budgets, strategy and trackers
    may differ.

    Data count by their content, the model's files by name, size and time of change: another model
    in the same place is another job.
    """
    digest = hashlib.sha256()
    fixed = {name: value for name, value in asked.items() if name not in UNSEEN}
    place = [str(sources.model_dir.resolve()), site.device, list(site.volumes)]
    stamps = list(model_stamps(sources.model_dir))
    digest.update(json.dumps([fixed, place, stamps], sort_keys=True).encode())
    for path in (sources.training_file, sources.validation_file):
        if path is not None:
            digest.update(bytes.fromhex(file_sha256(path)))
    return f"job-{digest.hexdigest()[:16]}"


def model_stamps(model: Path) -> Iterator[tuple[str, int, int]]:
    """Name, bytes and time of change of the files that make a model what it is, by name."""
    files = [model] if model.is_file() else sorted(model.iterdir()) if model.is_dir() else []
    for path in files:
        if path.suffix in MODEL_SUFFIXES and path.is_file():
            found = path.stat()
            yield path.name, found.st_size, found.st_mtime_ns


def prepare(
    asked: dict[str, Any],
    sources: Sources,
    site: Site,
    job_dir: Path,
    cache_dir: Path,
    emit: Emit,
) -> None:
    """Settle the request and prepare its data in a child. ApiError when it cannot be done."""
    resolved = resolve_job(asked, sources, site)
    for warning in resolved.warnings:
        emit(RunEvent(type="message", level="warn", message=warning))
    settled = {**asked, "method": resolved.method, "seed": resolved.seed}
    request = prepare_request(settled, sources, site, job_dir=job_dir, cache_dir=cache_dir)
    request.write()
    write_json(job_dir / "request.json", settled)
    cause = asyncio.run(Preparer().prepare(job_dir))
    for event in EventReader(job_dir / "events.jsonl").read():
        emit(RunEvent(type=event.type, message=event.message, level=event.level, data=event.data))  # type: ignore[arg-type]
    if refusal := refusal_of(job_dir, cause):
        status = 500 if cause else 400
        raise ApiError(status, refusal["message"], param=refusal["param"], code=refusal["code"])
    accept(job_dir)


def read_config(asked: Mapping[str, Any], site: Site, job_dir: Path) -> TrainConfig:
    """The prepared configuration, with the budgets and the strategy of this call."""
    spec = read_json(job_dir / "spec.json")
    assert spec is not None, job_dir
    placement = {
        "device_bytes": within(asked, "device_bytes", site.device_bytes),
        "host_bytes": within(asked, "host_bytes", site.host_bytes),
        "strategy": asked.get("strategy") or "auto",
    }
    return TrainConfig.from_dict({**spec, **placement})


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], StopReason | None]]:
    """A poll that asks for a shutdown after the first SIGINT or SIGTERM; the second one ends."""
    stopped = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield lambda: "shutdown" if stopped else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
