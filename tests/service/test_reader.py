import asyncio
import threading

import pytest

from headrace.service.reader import Reader


class Journal:
    """Answers when it is let, and counts."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.at_once = 0
        self.most_at_once = 0

    def look(self, number: int) -> int:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.asked.append(number)
        self.began.release()
        assert self.may_end.acquire(timeout=20)
        self.at_once -= 1
        return 10 * number + len(self.asked)


def test_a_question_that_waits_is_asked_once_and_no_answer_is_older_than_its_call() -> None:
    reader, journal = Reader(), Journal()

    async def ask() -> list[int]:
        first = asyncio.create_task(reader.ask(journal.look, 1))
        await asyncio.to_thread(journal.began.acquire)
        # The first look is under way, so that all who ask now are told of another one.
        later = [asyncio.create_task(reader.ask(journal.look, 1)) for _ in range(200)]
        others = [asyncio.create_task(reader.ask(journal.look, 2)) for _ in range(200)]
        await asyncio.sleep(0)
        journal.may_end.release(3)
        return await asyncio.gather(first, *later, *others)

    assert asyncio.run(ask()) == [11, *[12] * 200, *[23] * 200]
    assert journal.asked == [1, 1, 2] and journal.most_at_once == 1


def test_one_who_leaves_takes_nobodys_answer_away() -> None:
    reader, journal = Reader(), Journal()

    async def ask() -> int:
        busy = asyncio.create_task(reader.ask(journal.look, 1))
        await asyncio.to_thread(journal.began.acquire)
        leaves, stays = [asyncio.create_task(reader.ask(journal.look, 2)) for _ in range(2)]
        await asyncio.sleep(0)
        leaves.cancel()
        journal.may_end.release(2)
        await busy
        return await stays

    assert asyncio.run(ask()) == 22


def test_all_who_asked_hear_of_a_failure_and_the_next_question_is_answered() -> None:
    reader = Reader()

    def fail() -> None:
        raise ValueError("no such job")

    async def ask() -> int:
        told = await asyncio.gather(*[reader.ask(fail) for _ in range(3)], return_exceptions=True)
        assert [type(error) for error in told] == [ValueError] * 3
        return await reader.ask(len, "three")

    assert asyncio.run(ask()) == 5


@pytest.mark.parametrize("size", [1, 2])
def test_questions_with_other_arguments_are_other_questions(size: int) -> None:
    reader = Reader()

    async def ask() -> list[str]:
        return await asyncio.gather(*[reader.ask("x".ljust, n, "y") for n in range(1, size + 1)])

    assert asyncio.run(ask()) == ["x", "xy"][:size]
