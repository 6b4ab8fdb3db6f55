"""From a create request to a job in the journal: once, even when the request comes twice."""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from .contract import Daemon, Resolved
from .errors import ApiError
from .files import require_rows
from .job_table import Replay
from .jobs import JobRecord, UnknownId, new_id
from .journal import Journal
from .method import speaking_of
from .origin import Continuation, follow
from .schemas import CreateJob

MAX_PLANS = 2  # at a time: each takes a thread for seconds, and all else needs some too


class Creation:
    """Makes jobs, one request at a time, so that a repeat finds what the first one made."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = asyncio.Lock()
        self._planning = asyncio.Semaphore(MAX_PLANS)

    async def create(self, request: CreateJob, headers: Mapping[str, str]) -> JobRecord:
        """Make the job, or find the one that this same request made before.

        A request is a repeat when it brings an `Idempotency-Key` that was seen, or when the client
        says that it is sending it again and the same body came from the same caller within ten
        minutes: the OpenAI clients send no key but count their retries.
        """
        journal = self._daemon.journal
        replay, may_repeat = _recognise(request, headers)
        async with self._lock:
            if may_repeat and (made := await journal.call(journal.replayed, replay.key)):
                job, body_hash = made
                if body_hash != replay.body_hash:
                    message = "This Idempotency-Key came with another body before."
                    raise ApiError(400, message, code="idempotency_key_reused")
                return job
            body, resolved = await self.resolve(request)
            record = _record(body, resolved)
            needs = await journal.call(_needs, record, resolved, journal)
            try:
                job = await journal.call(journal.add_job, record, replay=replay, needs=needs)
            except UnknownId as e:
                message = f"{e.args[0]!r} was deleted while the job was planned."
                raise ApiError(400, message, code="deleted_meanwhile") from None
        self._daemon.wake()
        return job

    async def resolve(self, request: CreateJob) -> tuple[dict[str, Any], Resolved]:
        """Settle the request without making a job: the body that counts, and what it becomes.

        ApiError says why it cannot be done.
        """
        with speaking_of(request.place_of_hyperparameters):
            async with self._planning:
                return await asyncio.to_thread(self._resolve, request)

    def _resolve(self, request: CreateJob) -> tuple[dict[str, Any], Resolved]:
        body = request.body()
        journal = self._daemon.journal
        if request.resume_from is not None:
            origin = follow(body, self._daemon.settings, journal)
            if isinstance(origin, Continuation):
                return origin.body, origin
            body = origin
        _check_files(body, journal)
        try:
            return body, self._daemon.resolve(body)
        except FileNotFoundError:
            _check_files(body, journal)  # one may have been deleted while it was read
            raise


def _check_files(body: Mapping[str, Any], journal: Journal) -> None:
    """ApiError for a file that a create body names and the journal does not know."""
    for param in ("training_file", "validation_file"):
        if body.get(param) is not None:
            require_rows(journal, body[param], param)


def _needs(record: JobRecord, resolved: Resolved, journal: Journal) -> list[str]:
    """The files and the model that must be there when the job is added.

    One that goes on with a state has all it needs beside that; folders have names in no journal.
    """
    if isinstance(resolved, Continuation):
        return []
    files = [name for name in (record.training_file, record.validation_file) if name]
    return [*files, record.model] if journal.model(record.model) else files


def _record(body: dict[str, Any], resolved: Resolved) -> JobRecord:
    engine: dict[str, Any] = {
        "plan": resolved.plan,
        "settings": resolved.settings,
        "warnings": list(resolved.warnings),
    }
    if isinstance(resolved, Continuation):
        engine["state_name"] = resolved.state_name
    return JobRecord(
        id=new_id("ftjob-"),
        status="queued",
        model=body["model"],
        training_file=body["training_file"],
        validation_file=body.get("validation_file"),
        suffix=body.get("suffix"),
        seed=resolved.seed,
        metadata=body.get("metadata"),
        method=resolved.method,
        hyperparameters=resolved.hyperparameters,
        request=body,
        created_at=int(time.time()),
        engine=engine,
        priority=body.get("priority", 0),
    )


def _recognise(request: CreateJob, headers: Mapping[str, str]) -> tuple[Replay, bool]:
    """What identifies the request, and whether it may be a repeat."""
    body_hash = _digest(json.dumps(request.body(), sort_keys=True))
    caller = headers.get("authorization", headers.get("api-key", ""))
    idempotency_key = headers.get("idempotency-key")
    retries = headers.get("x-stainless-retry-count", "")
    # Above zero, of however many digits: `int` takes 4,300 of them.
    may_repeat = idempotency_key is not None or retries.strip("0").isdecimal()
    key = _digest("key", caller, idempotency_key) if idempotency_key else ""
    key = key or _digest("body", caller, body_hash)
    return Replay(key=key, body_hash=body_hash), may_repeat


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
