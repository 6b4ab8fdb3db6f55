import asyncio
import heapq
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.service.turns import AT_ONCE, LONGEST_REST, MAX_REST_SECONDS, Turns


class ScriptedLoop:
    """Time that passes only when someone who was woken works, or while nothing is to be done.

    `seconds` is what each who was woken takes of the loop.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.busy = 0.0
        self.most_at_once = 0
        self.waiting = set[int]()
        self.woken: list[int] = []
        self.at = list[float]()
        self.events = dict[int, asyncio.Event]()
        self.turns = Turns(cast(asyncio.AbstractEventLoop, self))
        self._soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._later: list[tuple[float, int, ScriptedTimer]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self._soon.append((call, args))

    def call_later(self, delay: float, call: Callable[..., None]) -> "ScriptedTimer":
        self._count += 1
        timer = ScriptedTimer(call)
        heapq.heappush(self._later, (self.now + delay, self._count, timer))
        return timer

    def queue(self, *names: int) -> None:
        """Those of them who do not wait already."""
        new = [name for name in names if name not in self.waiting]
        self.waiting.update(new)
        self.turns.queue([self.events.setdefault(name, asyncio.Event()) for name in new])

    def run(self, until: float = float("inf")) -> None:
        """Rounds of the loop until that time, or until nothing is left to do."""
        while self._soon or self._later:
            if not self._soon:
                if self._later[0][0] > until:
                    break
                at, _, timer = heapq.heappop(self._later)
                self.now = max(self.now, at)
                if timer.call:
                    self._soon.append((timer.call, ()))
                continue
            calls, self._soon = self._soon, []
            self._work()
            for call, args in calls:
                call(*args)
        self._work()

    def _work(self) -> None:
        """Who has been woken takes a while."""
        ready = [name for name, event in self.events.items() if event.is_set()]
        self.most_at_once = max(self.most_at_once, len(ready))
        for name in ready:
            self.events[name].clear()
            self.waiting.remove(name)
            self.now += self.seconds
            self.busy += self.seconds
            self.woken.append(name)
            self.at.append(self.now)


class ScriptedTimer:
    def __init__(self, call: Callable[..., None]) -> None:
        self.call: Callable[..., None] | None = call

    def cancel(self) -> None:
        self.call = None


@pytest.mark.parametrize("seconds", [0.0001, 0.001])
@pytest.mark.parametrize("waves_a_second", [10, 100])
def test_many_take_a_bounded_share_however_fast_events_come_and_however_slow_the_loop_is(
    seconds: float, waves_a_second: int
) -> None:
    loop, viewers = ScriptedLoop(seconds), range(200)
    for wave in range(5 * waves_a_second):
        loop.queue(*viewers)
        loop.run(until=(wave + 1) / waves_a_second)
        loop.now = max(loop.now, (wave + 1) / waves_a_second)
    assert loop.most_at_once <= AT_ONCE
    assert set(loop.woken) == set(viewers)
    assert loop.busy / loop.now < 1.3 / (1 + LONGEST_REST)


def test_one_alone_is_told_at_once() -> None:
    loop = ScriptedLoop(0.0001)
    for number in range(100):
        loop.queue(1)
        loop.run(until=number * 0.01)
        assert len(loop.woken) == number + 1
        assert loop.at[-1] == pytest.approx(number * 0.01 + 0.0001)
        loop.now = (number + 1) * 0.01
    assert loop.busy == pytest.approx(100 * 0.0001)


def test_everyone_has_a_turn_in_the_order_in_which_they_came() -> None:
    loop = ScriptedLoop(0.0001)
    loop.queue(*range(50))
    loop.queue(*range(50, 100))
    loop.run()
    assert loop.woken == list(range(100))


def test_in_a_hurry_nobody_rests_and_few_are_still_woken_at_once() -> None:
    loop = ScriptedLoop(0.0001)
    loop.queue(*range(8))
    loop.run(until=0.0005)  # the first had their turn: all rest
    assert len(loop.woken) == AT_ONCE
    loop.queue(*range(100, 300))
    loop.turns.hurry()
    loop.run()
    assert loop.now == pytest.approx(loop.busy, abs=3 * LONGEST_REST * AT_ONCE * 0.0001)
    assert loop.most_at_once <= AT_ONCE and len(loop.woken) == 208


def test_what_holds_the_loop_up_once_does_not_hold_viewers_up_for_long() -> None:
    loop = ScriptedLoop(2.0)
    loop.queue(*range(2 * AT_ONCE))
    loop.run()
    assert loop.now <= loop.busy + 2 * MAX_REST_SECONDS
