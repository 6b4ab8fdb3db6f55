"""What viewers ask of the journal, on one thread of its own for all of them.

More threads would answer no sooner, since they take turns at the interpreter, and would keep the
event loop and everyone else from theirs.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

MAX_REST_SECONDS = 0.1


class Reader:
    """Asks one question at a time and rests for as long as the last one took.

    A question that waits for its turn is asked once, however many want to know, and an answer is
    never older than the call that it is given to.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "viewers-reader")
        self._lock = Lock()
        self._waiting: dict[Any, Future[Any]] = {}
        self._rests_until = 0.0

    async def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The answer of `question(*args)`, whose arguments can be compared and hashed."""
        key = (question, args, tuple(kwargs.items()))
        with self._lock:
            answer = self._waiting.get(key)
            if answer is None:
                answer = self._thread.submit(self._answer, key)
                self._waiting[key] = answer
        told: T = await asyncio.shield(asyncio.wrap_future(answer))  # others may wait for it too
        return told

    def _answer(self, key: tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]) -> Any:
        time.sleep(max(0.0, self._rests_until - time.monotonic()))
        with self._lock:
            del self._waiting[key]  # who asks from now on may want to know more
        question, args, named = key
        began = time.monotonic()
        try:
            return question(*args, **dict(named))
        finally:
            ended = time.monotonic()
            self._rests_until = ended + min(ended - began, MAX_REST_SECONDS)
