"""What a program that uses the `openai` client may count on, point by point.

Needs that client and nothing else, so that any version's own environment can run it against a
daemon: `HEADRACE_TOKEN=… python openai_checks.py URL`. The daemon serves a model named `tiny`
and wants a token. Prints one JSON object: the client's version, and "" or the fault by point.
"""

import asyncio
import csv
import hashlib
import importlib
import io
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import openai

CHAT = [{"role": "user", "content": "Is it open?"}, {"role": "assistant", "content": "It is."}]
ROWS = (json.dumps({"messages": CHAT}) + "\n").encode() * 200
FILE: Any = ("rows.jsonl", ROWS)
STEPS = 45
LONG_STEPS = 10_000  # all that 200 rows have in 50 epochs: more than any point waits for
SECONDS = 120


@dataclass
class World:
    """A client of one daemon, what it sent, and things that several points look at."""

    url: str
    token: str
    hits: list[str] = field(default_factory=list)

    @cached_property
    def client(self) -> Any:
        """The client, with its own retries, counting what it sends."""
        return self.client_with(request=lambda request: self.hits.append(request.method))

    def client_with(self, **hooks: Callable[[Any], None]) -> Any:
        """A client whose transport calls these hooks."""
        transport: Any = openai.DefaultHttpxClient
        http = transport(event_hooks={name: [hook] for name, hook in hooks.items()})
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.token, http_client=http)

    @cached_property
    def file_id(self) -> str:
        """An uploaded file."""
        return str(self.client.files.create(file=FILE, purpose="fine-tune").id)

    @property
    def jobs(self) -> Any:
        """The jobs of the client."""
        return self.client.fine_tuning.jobs

    def create(self, steps: int = LONG_STEPS, **more: Any) -> Any:
        """A job of so many steps."""
        hyperparameters: dict[str, Any] = {"max_steps": steps, "n_epochs": 50, "batch_size": 1}
        if steps == STEPS:
            hyperparameters |= {"checkpoint_every": {"steps": 20}, "keep_last": 2}
        method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
        wanted = {"model": "tiny", "training_file": self.file_id, "method": method}
        return self.jobs.create(**wanted | more)

    @cached_property
    def finished(self) -> Any:
        """A job that succeeded, with a file of its own."""
        return self.until(self.create(STEPS).id, "succeeded")

    def until(self, job_id: str, *statuses: str) -> Any:
        """Poll as programs do until the job is in one of these statuses."""
        end = time.monotonic() + SECONDS
        while (job := self.jobs.retrieve(job_id)).status not in statuses:
            said = f"{job.status}, {job.error}"
            assert job.status not in ("succeeded", "failed", "cancelled"), said
            assert time.monotonic() < end, f"never {statuses}: {said}"
            time.sleep(0.05)
        return job

    def refused(self, call: Callable[..., Any], status: int, **how: Any) -> Any:
        """A refusal: sent once, and everything that a program reads of it is there."""
        self.hits.clear()
        try:
            call(**how)
        except openai.APIStatusError as error:
            assert error.status_code == status, error
            assert len(self.hits) <= 1, f"sent {len(self.hits)} times"
            assert error.code and error.type and str(error.request_id).startswith("req_"), error
            assert error.body and error.body["message"] in str(error), error  # type: ignore[index]
            return error
        raise AssertionError("was not refused")


def files_come_from_path_bytes_and_tuple(world: World) -> None:
    files = world.client.files
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_bytes(ROWS)
        with path.open("rb") as opened:
            for source in (path, ROWS, FILE, opened):
                file = files.create(file=source, purpose="fine-tune")
                assert files.wait_for_processing(file.id).status == "processed"
                assert files.content(file.id).read() == ROWS
        content = files.with_streaming_response.content(file.id)
        with content as answer:
            answer.stream_to_file(Path(folder, "back"))
        assert Path(folder, "back").read_bytes() == ROWS
    assert files.retrieve(file.id).filename == "rows.jsonl"
    assert [f.id for f in files.list(purpose="fine-tune", limit=2, order="desc")][0] == file.id
    assert files.delete(file.id).deleted


def chunked_uploads(world: World) -> None:
    uploads = world.client.uploads
    what = {"mime_type": "application/jsonl", "purpose": "fine-tune"}
    in_three = {"part_size": len(ROWS) // 3 + 1}
    md5 = hashlib.md5(ROWS).hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_bytes(ROWS)
        world.hits.clear()
        done = uploads.upload_file_chunked(file=path, md5=md5, **what, **in_three)
        assert len(world.hits) == 5, "create, three parts, complete"
    assert (done.status, done.object, done.file.bytes) == ("completed", "upload", len(ROWS))
    assert world.client.files.content(done.file.id).read() == ROWS
    assert world.client.files.wait_for_processing(done.file.id).filename == "rows.jsonl"
    memory = {"file": ROWS, "filename": "rows.jsonl"} | what | in_three
    assert uploads.upload_file_chunked(bytes=len(ROWS), **memory).status == "completed"
    chunked = uploads.upload_file_chunked
    world.refused(lambda: _alone(world, chunked, bytes=len(ROWS) + 1, **memory), 400)
    world.refused(lambda: _alone(world, chunked, bytes=len(ROWS), md5="0" * 32, **memory), 400)
    begun = uploads.create(bytes=1, filename="a", **what)
    assert uploads.cancel(begun.id).status == "cancelled"


def _alone(world: World, call: Callable[..., Any], **how: Any) -> None:
    """Several requests, of which the last one counts."""
    try:
        call(**how)
    except openai.APIStatusError:
        assert len(world.hits) == 5, f"sent {len(world.hits)} times"
        world.hits.clear()
        raise


def a_job_of_two_fields(world: World) -> None:
    job = world.jobs.create(model="tiny", training_file=world.file_id)
    assert job.object == "fine_tuning.job" and job.id.startswith("ftjob-")
    settled = job.method.supervised.hyperparameters
    assert settled.n_epochs == job.hyperparameters.n_epochs == 3, "auto is settled and echoed"
    assert isinstance(settled.batch_size, int) and isinstance(job.seed, int)
    assert job.id in [listed.id for listed in world.jobs.list(limit=5)]
    world.jobs.cancel(job.id)


def deprecated_hyperparameters_are_mirrored(world: World) -> None:
    wanted = {"n_epochs": 4, "batch_size": 2, "learning_rate_multiplier": 0.5}
    job = world.jobs.create(model="tiny", training_file=world.file_id, hyperparameters=wanted)
    for shown in (job.hyperparameters, job.method.supervised.hyperparameters):
        assert {name: getattr(shown, name) for name in wanted} == wanted
    world.jobs.cancel(job.id)


def nulls_are_taken(world: World) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("seed", "suffix", "metadata", "validation_file", "integrations")
    )
    job = world.create(**nothing)
    assert job.metadata is None and isinstance(job.seed, int)
    assert job.id in [listed.id for listed in world.jobs.list(metadata=None, limit=5)]
    world.jobs.cancel(job.id)


def jobs_are_found_by_metadata(world: World) -> None:
    tag = str(time.time_ns())
    job = world.create(metadata={"a[b]": tag, "c": "d"}, suffix="mine", seed=5)
    assert (job.metadata["a[b]"], job.seed) == (tag, 5)
    assert [found.id for found in world.jobs.list(metadata={"a[b]": tag})] == [job.id]
    assert list(world.jobs.list(metadata={"a[b]": tag + "x"})) == []
    world.jobs.cancel(job.id)


def events_are_walked_once_newest_first(world: World) -> None:
    job = world.finished
    world.hits.clear()
    events = list(world.jobs.list_events(job.id, limit=10))
    numbers = [event.seq for event in events]
    assert len(events) >= STEPS and numbers == sorted(set(numbers), reverse=True)
    assert len(world.hits) == -(-len(events) // 10), "a page more than there is, or fewer"
    metrics = [event for event in events if event.type == "metrics"]
    assert [event.data["step"] for event in metrics] == list(range(STEPS, 0, -1))
    assert {event.level for event in events} <= {"info", "warn", "error"}


def a_checkpoint_is_a_model(world: World) -> None:
    points = list(world.jobs.checkpoints.list(world.finished.id, limit=1))
    steps = [point.step_number for point in points]
    assert steps == [40, 20], steps
    assert points[0].metrics.train_loss is not None and points[0].metrics.step == 40
    assert points[0].metrics.train_mean_token_accuracy is not None
    name = points[0].fine_tuned_model_checkpoint
    for given in (
        {"model": points[0].id},
        {"model": name},
        {"extra_body": {"resume_from": points[0].id}},
        {"extra_body": {"resume_from": world.finished.id}},
    ):
        job = world.create(**given)
        world.jobs.cancel(job.id)
        assert job.model.startswith(("ft:tiny:", "ftckpt_")), job.model


def jobs_obey(world: World) -> None:
    jobs = world.jobs
    running, waiting = world.create(), world.create()
    world.until(running.id, "running")
    assert world.until(waiting.id, "queued").status == "queued"
    world.hits.clear()
    assert jobs.cancel(waiting.id).status == "cancelled", "queued"
    jobs.pause(running.id)
    assert len(world.hits) == 2
    world.until(running.id, "paused")
    assert jobs.resume(running.id).status == "queued"
    world.until(running.id, "running")
    jobs.cancel(running.id)
    world.until(running.id, "cancelled")
    held = world.create()
    jobs.pause(held.id)
    world.until(held.id, "paused")
    assert jobs.cancel(held.id).status == "cancelled", "paused"
    for verb in (jobs.cancel, jobs.pause, jobs.resume):
        error = world.refused(verb, 400, fine_tuning_job_id=world.finished.id)
        assert "succeeded" in str(error)


def errors_say_what_and_where(world: World) -> None:
    jobs, client = world.jobs, world.client
    for how, param in (
        ({"training_file": "file-none"}, "training_file"),
        ({"validation_file": "file-none"}, "validation_file"),
        ({"model": "none"}, "model"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "dpo"}}, "training_file"),  # it has no preferences
        ({"seed": -1}, "seed"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"extra_body": {"colour": "red"}}, "colour"),
    ):
        wanted: dict[str, Any] = {"model": "tiny", "training_file": world.file_id}
        error = world.refused(jobs.create, 400, **wanted | how)
        assert isinstance(error, openai.BadRequestError) and error.param == param, error
    missing = world.refused(jobs.retrieve, 404, fine_tuning_job_id="ftjob-none")
    assert isinstance(missing, openai.NotFoundError)
    world.refused(client.files.retrieve, 404, file_id="file-none")
    world.refused(client.models.retrieve, 404, model="none")
    world.refused(jobs.list, 400, after="ftjob-none")
    world.refused(client.files.create, 400, file=FILE, purpose="assistants")


def an_unknown_hyperparameter_gets_a_suggestion(world: World) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epoch": 3}}}
    error = world.refused(world.create, 400, method=method)
    assert "n_epochs'?" in str(error)
    assert error.param == "method.supervised.hyperparameters.n_epoch"


def a_lost_answer_makes_no_twin(world: World) -> None:
    lost: list[Any] = []
    module = importlib.import_module(openai.DefaultHttpxClient.__mro__[2].__module__.split(".")[0])

    def lose_the_first(response: Any) -> None:
        if not lost:
            response.read()
            lost.append(response.json()["id"])
            raise module.ReadError("the cable was pulled")

    tag = str(time.time_ns())
    with world.client_with(response=lose_the_first) as client:
        wanted = {"model": "tiny", "training_file": world.file_id, "metadata": {"twin": tag}}
        job = client.fine_tuning.jobs.create(**wanted)
    assert [job.id] == lost == [found.id for found in world.jobs.list(metadata={"twin": tag})]
    world.jobs.cancel(job.id)


def the_result_file_is_a_table(world: World) -> None:
    job = world.finished
    assert job.finished_at and job.trained_tokens and job.estimated_finish is None
    text = world.client.files.content(job.result_files[0]).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0])[:2] == ["step", "train_loss"]
    assert [int(row["step"]) for row in rows if row["train_loss"]] == list(range(1, STEPS + 1))
    assert world.client.files.retrieve(job.result_files[0]).purpose == "fine-tune-results"


def models_are_those_there_and_those_made(world: World) -> None:
    models = world.client.models
    made = world.finished.fine_tuned_model
    assert made.startswith("ft:tiny:")
    assert {"tiny", made} <= {model.id for model in models.list()}
    assert (models.retrieve(made).id, models.retrieve("tiny").object) == (made, "model")


def tokens_and_files_in_use_are_guarded(world: World) -> None:
    none: Any = {"extra_headers": {"Authorization": openai.Omit()}}
    wrong: Any = {"extra_headers": {"Authorization": "Bearer wrong"}}
    for given, code in ((none, "missing_token"), (wrong, "invalid_api_key")):
        error = world.refused(world.client.models.list, 401, **given)
        assert isinstance(error, openai.AuthenticationError) and error.code == code
    job = world.create()
    error = world.refused(world.client.files.delete, 400, file_id=world.file_id)
    assert job.id in str(error)
    world.jobs.cancel(job.id)


def the_asynchronous_client_works_too(world: World) -> None:
    async def use() -> None:
        client: Any = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.token)
        async with client:
            what = {"mime_type": "application/jsonl", "purpose": "fine-tune", "part_size": 9999}
            done = await client.uploads.upload_file_chunked(
                file=ROWS, filename="rows.jsonl", bytes=len(ROWS), **what
            )
            events = client.fine_tuning.jobs.list_events(world.finished.id, limit=20)
            assert len([event async for event in events]) >= STEPS
            assert (await client.files.content(done.file.id)).read() == ROWS

    asyncio.run(use())


POINTS: dict[str, Callable[[World], None]] = {
    "1 upload from path, bytes, tuple and file": files_come_from_path_bytes_and_tuple,
    "2 chunked upload, wrong total, wrong md5": chunked_uploads,
    "3 create with model and training_file": a_job_of_two_fields,
    "4 deprecated hyperparameters": deprecated_hyperparameters_are_mirrored,
    "5 nulls": nulls_are_taken,
    "6 list by metadata": jobs_are_found_by_metadata,
    "7 iterate events": events_are_walked_once_newest_first,
    "8 a checkpoint as model": a_checkpoint_is_a_model,
    "9 cancel, pause, resume, one hit each": jobs_obey,
    "10 errors: reason, code, param, request_id": errors_say_what_and_where,
    "11 unknown hyperparameter": an_unknown_hyperparameter_gets_a_suggestion,
    "12 replayed create": a_lost_answer_makes_no_twin,
    "13 result file": the_result_file_is_a_table,
    "14 models": models_are_those_there_and_those_made,
    "15 tokens; a file in use": tokens_and_files_in_use_are_guarded,
    "16 the asynchronous client": the_asynchronous_client_works_too,
}


def check(url: str, token: str) -> dict[str, str]:
    """Every point with nothing, or with what was wrong."""
    world = World(url, token)
    return {name: fault_of(point, world) for name, point in POINTS.items()}


def fault_of(point: Callable[[World], None], world: World) -> str:
    """What was wrong, and in which line; nothing when the point holds."""
    try:
        point(world)
    except Exception as error:
        here = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
        return f"line {here[-1].lineno}: {here[-1].line}: {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    found = check(sys.argv[1], os.environ["HEADRACE_TOKEN"])
    print(json.dumps({"openai": openai.__version__, "points": found}))
