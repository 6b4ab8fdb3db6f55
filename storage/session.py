"""What an open store may do now: the order of calls, and what failures forbid.

The caller holds the store's lock.
"""

from .errors import Misuse


class Session:
    """Open or closed, writable or not, between `begin` and `commit` or outside."""

    def __init__(self, *, read_only: bool) -> None:
        self._refusal = "it was opened read-only" if read_only else ""
        self._failure: BaseException | None = None
        self._begun_step: int | None = None
        self._closed = False

    @property
    def read_only(self) -> bool:
        """True when writes are refused until the store is opened again."""
        return bool(self._refusal)

    def begin(self, step: int) -> None:
        """Writes belong to `step` from now on."""
        self.check_writable()
        self._begun_step = step

    def end(self, what: str) -> int:
        """No further writes; the step that was begun last. Misuse outside `begin`."""
        step = self.step_of(what)
        self._begun_step = None
        return step

    def step_of(self, what: str) -> int:
        """The step that a write belongs to. Misuse outside `begin`."""
        self.check_writable()
        if self._begun_step is None:
            raise Misuse(f"{what} outside begin and commit; call begin first")
        return self._begun_step

    def failed(self, error: BaseException) -> None:
        """A write failed: no commit until `forget`. The first failure is the one that is told."""
        self._failure = self._failure or error

    def refuse_writes(self, why: str) -> None:
        """The state on the drives is in doubt: read-only until the store is opened again."""
        self._refusal = why

    def forget(self) -> None:
        """Back to where the last commit left off."""
        self.check_open()
        self._failure = None
        self._begun_step = None

    def close(self) -> bool:
        """Nothing is allowed any more; False when it was closed before."""
        was_open, self._closed = not self._closed, True
        return was_open

    def check_open(self) -> None:
        """Raise Misuse on a closed store."""
        if self._closed:
            raise Misuse("the store is closed")

    def check_writable(self) -> None:
        """Raise Misuse, with the reason, on a store that may not be written."""
        self.check_open()
        if self._refusal:
            raise Misuse(f"the store is read-only: {self._refusal}")
        if self._failure is not None:
            raise Misuse(
                f"a write since the last commit failed ({self._failure}); call abort, "
                "then repeat the work since that commit"
            ) from self._failure
