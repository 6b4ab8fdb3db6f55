"""What the routes ask of the daemon. The daemon fulfils it; tests put a scripted one in its place.

`resolve`, `free_job`, `status` and `ready` may block and are called in a thread; the others on the
event loop.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from .events import Hub
from .jobs import JobRecord
from .journal import Journal
from .settings import Settings


class Resolved(Protocol):
    """A create request with every "auto" settled, and the plan that it leads to."""

    @property
    def method(self) -> dict[str, Any]:
        """The method object, resolved."""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The resolved hyperparameters alone."""

    @property
    def seed(self) -> int:
        """The seed, drawn when none was given."""

    @property
    def plan(self) -> dict[str, Any]:
        """The plan, JSON-ready."""

    @property
    def settings(self) -> dict[str, Any]:
        """What else was settled: dtype, state format, durability, limits and such."""

    @property
    def warnings(self) -> Sequence[str]:
        """What the user should know before the job runs."""


class Daemon(Protocol):
    """The daemon as the API sees it."""

    @property
    def settings(self) -> Settings:
        """The settings it was started with."""

    @property
    def journal(self) -> Journal:
        """The journal; open from `start` to `stop`."""

    @property
    def hub(self) -> Hub:
        """Where the journal publishes."""

    async def start(self) -> None:
        """Open the journal, take up interrupted jobs, start the worker."""

    async def drain(self) -> None:
        """Start nothing more, finish the step in hand, commit, end the children."""

    async def stop(self) -> None:
        """Drain, then close the journal."""

    def in_words(self) -> str:
        """What goes on, in a sentence; does not block."""

    def resolve(self, body: dict[str, Any]) -> Resolved:
        """Settle a create request; ApiError says why it cannot be done."""

    def wake(self) -> None:
        """A job was added or resumed: look at the queue."""

    async def stop_job(self, job_id: str, reason: Literal["cancel", "pause"]) -> None:
        """End or pause a job; one that runs goes on to its next step boundary first."""

    def free_job(self, job: JobRecord) -> bool:
        """Remove an ended job's training state; whether there was any. ApiError: why not."""

    def status(self) -> dict[str, Any]:
        """Worker, running job, storage, device and disk, JSON-ready."""

    def ready(self) -> Sequence[str]:
        """Why no job can be taken now; empty when one can."""
