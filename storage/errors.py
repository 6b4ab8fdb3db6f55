"""Everything that can go wrong in the store, as a closed family. Messages say what to do."""


class StoreError(Exception):
    """A failure of the store; the base of the family."""


class NoSpace(StoreError):
    """A volume cannot hold what it should; nothing was left behind."""


class IoFailed(StoreError):
    """A read, write or sync failed, or moved fewer bytes than wanted."""

    def __init__(
        self, *, volume: str, operation: str, offset: int, wanted: int, got: int, cause: str
    ) -> None:
        self.volume = volume
        self.operation = operation
        self.offset = offset
        self.wanted = wanted
        self.got = got
        self.cause = cause
        super().__init__(
            f"{operation} on volume {volume} at byte {offset}: wanted {wanted} bytes, "
            f"got {got}: {cause}"
        )


class IoTimeout(StoreError):
    """An operation did not finish in time; its buffer stays reserved, since it may still land."""


class Corrupt(StoreError):
    """Bytes read back are not the bytes that were committed."""


class NotCommitted(StoreError):
    """The store was created but nothing was ever committed to it."""


class Incompatible(StoreError):
    """A file of another kind, another format version, or of another store."""


class Locked(StoreError):
    """Another living process holds the store."""


class WriteBudgetSpent(StoreError):
    """The bytes that may be written to the volumes are used up; what is committed is whole.

    No step may begin. What was written since the last commit can still be committed.
    """

    def __init__(self, *, written_bytes: int, limit_bytes: int, step_bytes: int) -> None:
        self.written_bytes = written_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"{written_bytes} bytes were written over the life of the store and a step writes "
            f"{step_bytes}, with a budget of {limit_bytes}; raise max_bytes_written to go on"
        )


class Misuse(StoreError):
    """The caller broke the order of calls (a write outside begin, a commit after a failure)."""
