"""The HTTP client of the command line: the daemon's routes and its live stream of events."""

import json
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.storage import file_sha256

from .jobs import TERMINAL
from .whole_file import in_place_of

if TYPE_CHECKING:  # commands without a daemon need nothing of it
    import httpx2

RETRY_SECONDS = 60.0  # how long `follow` bears a daemon that is away, for instance restarting
ADVICE = {  # to people at the command line, by the code of a refusal
    "missing_token": "Here: in HEADRACE_TOKEN, or in a file with --token-file.",
    "invalid_api_key": "`headrace token list` shows those there are.",
}


class DaemonError(Exception):
    """The daemon did not do what was asked; the message says why and what to do."""


class Unreachable(DaemonError):
    """No daemon answers at the address."""


class Refused(DaemonError):
    """The daemon answered with an error. The fields are those of the API's error envelope."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        self.status = status
        self.error = error
        advice = error.get("hint") or ADVICE.get(error.get("code") or "")
        hint = f" ({advice})" if advice else ""
        super().__init__(f"{error.get('message') or f'HTTP status {status}'}{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """One server-sent event: its id (what a reconnect resumes after), its name, its JSON data."""

    id: str
    event: str
    data: Any


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Turn the lines of a `text/event-stream` body into events; comments are left out.

    An event that the stream breaks off in the middle is not returned. ValueError when the data of
    an event is not JSON.
    """
    fields: dict[str, str] = {}
    last_id = ""
    for line in lines:
        line = line.rstrip("\r\n")
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
            continue
        last_id = fields.get("id", last_id)
        if "data" in fields:
            event = fields.get("event", "message")
            yield ServerEvent(id=last_id, event=event, data=json.loads(fields["data"]))
        fields = {}


class Client:
    """The daemon at `url` (no `/v1`). A context manager; every method may raise DaemonError."""

    def __init__(self, url: str, *, token: str | None = None, timeout_seconds: float = 30) -> None:
        import httpx2

        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(timeout_seconds, connect=5)
        # the daemon is on this box or named by hand: a proxy in the environment is not for it
        self._http = httpx2.Client(
            base_url=self.url, headers=headers, timeout=timeout, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """One request; the decoded JSON answer. `options` are httpx2's (`json`, `params`, …)."""
        try:
            response = self._http.request(method, path, **options)
        except _broken_off() as error:
            raise self._unreachable(error) from error
        return _answer(response)

    def find_file(self, path: Path, *, purpose: str = "fine-tune") -> dict[str, Any] | None:
        """The daemon's file of this name and content, if it holds one that stays."""
        digest = file_sha256(path)
        for one in self.files():
            same = (one["filename"], one.get("sha256"), one["purpose"])
            if same == (path.name, digest, purpose) and one.get("expires_at") is None:
                return one
        return None

    def upload(self, path: Path, *, purpose: str = "fine-tune") -> dict[str, Any]:
        """Send a training file, streamed from disk; the file object of the API."""
        with path.open("rb") as file:
            parts = {"file": (path.name, file, "application/octet-stream")}
            answer = self.call(
                "POST", "/v1/files", data={"purpose": purpose}, files=parts, timeout=600
            )
        return dict(answer)

    def create_job(self, body: dict[str, Any]) -> dict[str, Any]:
        """Submit a create body; the job object."""
        return dict(self.call("POST", "/v1/fine_tuning/jobs", json=body))

    def job(self, job_id: str) -> dict[str, Any]:
        """The job object of the API, with Headrace's `engine` object."""
        return dict(self.call("GET", f"/v1/fine_tuning/jobs/{job_id}"))

    def jobs(self, *, limit: int) -> list[dict[str, Any]]:
        """The newest `limit` jobs, newest first; as many pages as that takes."""
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            after = {"after": found[-1]["id"]} if found else {}
            params = {"limit": min(100, limit - len(found)), **after}
            page = self.call("GET", "/v1/fine_tuning/jobs", params=params)
            found += page["data"]
            if not page.get("has_more") or not page["data"]:
                break
        return found

    def act(self, job_id: str, verb: str) -> dict[str, Any]:
        """`cancel`, `pause` or `resume` a job; the job object afterwards."""
        return dict(self.call("POST", f"/v1/fine_tuning/jobs/{job_id}/{verb}"))

    def free(self, job_id: str) -> dict[str, Any]:
        """Remove an ended job's training state; `freed` says whether there was any."""
        return dict(self.call("POST", f"/v1/fine_tuning/jobs/{job_id}/free"))

    def plan(self, body: dict[str, Any]) -> dict[str, Any]:
        """What a create body would be and cost, without making the job."""
        return dict(self.call("POST", "/v1/fine_tuning/plans", json=body))

    def events(self, job_id: str, *, page: int = 100) -> Iterator[dict[str, Any]]:
        """Every event of a job, newest first, asked for a page at a time."""
        return self._pages(f"/v1/fine_tuning/jobs/{job_id}/events", page)

    def samples(self, job_id: str, *, page: int = 20) -> Iterator[dict[str, Any]]:
        """A job's sample texts by evaluation, newest first, likewise."""
        return self._pages(f"/v1/fine_tuning/jobs/{job_id}/samples", page)

    def why_no_samples(self, job_id: str) -> str:
        """The daemon's reason why a job has no sample texts; an older one gives none."""
        found = self.call("GET", f"/v1/fine_tuning/jobs/{job_id}/samples", params={"limit": 1})
        return found.get("reason") or "none were written yet"

    def row_losses(self, job_id: str) -> dict[str, Any]:
        """The rows of a job that stand out by their loss."""
        return dict(self.call("GET", f"/v1/fine_tuning/jobs/{job_id}/row_losses"))

    def _pages(self, path: str, page: int) -> Iterator[dict[str, Any]]:
        after: dict[str, str] = {}
        while True:
            found = self.call("GET", path, params={"limit": page, **after})
            yield from found["data"]
            if not found.get("has_more") or not found["data"]:
                return
            after = {"after": found["last_id"]}

    def files(self) -> list[dict[str, Any]]:
        """Every file, newest first."""
        return list(self.call("GET", "/v1/files")["data"])

    def download(self, path: str, target: Path) -> int:
        """Write the answer of a GET to `target`, which is there whole or not at all; its bytes."""
        try:
            with in_place_of(target) as part:
                self._download(path, part)
        except _broken_off() as error:
            raise self._unreachable(error) from error
        return target.stat().st_size

    def _download(self, path: str, part: Path) -> None:
        with self._http.stream("GET", path, timeout=600) as response, part.open("wb") as file:
            if response.status_code != 200:
                response.read()
                _answer(response)
            for chunk in response.iter_bytes():
                file.write(chunk)

    def models(self) -> list[dict[str, Any]]:
        """The models that a job can start from."""
        return list(self.call("GET", "/v1/models")["data"])

    def model(self, name: str) -> dict[str, Any]:
        """A model by its name; `path` is its directory on the daemon's machine."""
        return dict(self.call("GET", f"/v1/models/{name}"))

    def status(self) -> dict[str, Any]:
        """The daemon's own status: worker, running job, queue, storage, device, disk."""
        return dict(self.call("GET", "/status"))

    def stream(self, job_id: str, *, after: str = "") -> Generator[ServerEvent]:
        """The job's events from a snapshot on, or after event id `after`, until the server ends it.

        Raises Unreachable when the connection breaks off.
        """
        import httpx2

        path = f"/v1/fine_tuning/jobs/{job_id}/events/stream"
        headers = {"accept": "text/event-stream", **({"last-event-id": after} if after else {})}
        timeout = httpx2.Timeout(45, connect=5)  # the server pings every 15 s or faster
        try:
            with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if response.status_code == 204:
                    return  # the job is over and `after` was its last event
                if response.status_code != 200:
                    response.read()
                    _answer(response)
                yield from parse_events(response.iter_lines())
        except _broken_off() as error:
            raise self._unreachable(error) from error

    def follow(self, job_id: str, *, after: str = "") -> Generator[ServerEvent]:
        """Like `stream`, but reconnects where it left off until the job has come to its end.

        Raises Unreachable when no daemon answers for RETRY_SECONDS.
        """
        last_id = after
        away_since: float | None = None
        while True:
            try:
                with closing(self.stream(job_id, after=last_id)) as events:
                    for event in events:
                        away_since = None
                        last_id = event.id or last_id
                        yield event
                if self.job(job_id)["status"] in TERMINAL:
                    return
            except Unreachable:
                now = time.monotonic()
                away_since = away_since or now
                if now - away_since > RETRY_SECONDS:
                    raise
            time.sleep(0.5)

    def _unreachable(self, error: Exception) -> Unreachable:
        cause = str(error) or type(error).__name__
        return Unreachable(
            f"no daemon answers at {self.url}: {cause}. Start one with `headrace serve`, "
            "or name another with --url"
        )


def _broken_off() -> type[Exception]:
    """What is raised where a request gets no whole answer."""
    from httpx2 import TransportError

    return TransportError


def _answer(response: "httpx2.Response") -> Any:
    """The JSON of a good answer; Refused for an error, also for one that is not in the envelope."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and body is not None:
        return body
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": f"HTTP status {response.status_code} without a reason from "
                            f"{response.url}; is this a Headrace daemon?"}  # fmt: skip
    raise Refused(response.status_code, error)
