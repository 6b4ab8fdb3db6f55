"""Clients that open connections and do not go on: nobody else is kept waiting for them."""

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from headrace.service import connections
from headrace.service.connections import Connection, max_connections, raise_open_files

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
MUCH = b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n"
PIECE = b"x" * 65_536
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers `done` when the body is whole; /slow waits before it reads, /stream never ends.

    /much answers with more than anyone's buffers hold, and gives up as a dropped stream does.
    """
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    while scope["path"] != "/stream" and (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/much":
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        return
    more = scope["path"] == "/stream"
    await send({"type": "http.response.body", "body": b"done", "more_body": more})
    if more:
        await asyncio.sleep(60)


@asynccontextmanager
async def served(
    most: int = 100, state: ServerState | None = None
) -> AsyncIterator[Callable[[], Awaitable[Opened]]]:
    """The app behind our connections, `most` of them; a function that opens another one."""
    kind = type("Few", (Connection,), {"most": most})
    config = uvicorn.Config(app, log_config=None, http=kind, ws="none", lifespan="off")
    config.load()
    state, clients = state or ServerState(), list[Opened]()
    make = partial(kind, config=config, server_state=state, app_state={})
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def connect() -> Opened:
        clients.append(await asyncio.open_connection("127.0.0.1", port))
        return clients[-1]

    try:
        async with asyncio.timeout(20):
            yield connect
    finally:
        server.close()
        for transport in [
            *(c[1].transport for c in clients),
            *(c.transport for c in state.connections),
        ]:
            transport.abort()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def answer(opened: Opened, request: bytes) -> bytes:
    """What comes back until the connection pauses after an answer, or ends."""
    reader, writer = opened
    writer.write(request)
    return await reader.readuntil(b"done")


async def is_cut(opened: Opened, seconds: float = 6) -> bool:
    """Whether the server ends the connection within that time."""
    try:
        await asyncio.wait_for(opened[0].read(), seconds)  # to its end
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@contextmanager
def times(monkeypatch: pytest.MonkeyPatch, *, request: float, body: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(connections, "REQUEST_SECONDS", request)
        patch.setattr(connections, "BODY_SECONDS", body)
        yield


def test_a_head_that_comes_in_drops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served() as connect:
            silent, dripping = await connect(), await connect()
            dripping[1].write(HEAD)
            for _ in range(8):
                await asyncio.sleep(0.15)
                dripping[1].write(b"a")
            assert await is_cut(silent) and await is_cut(dripping)
            assert await answer(await connect(), HEAD + b"\r\n")

    with times(monkeypatch, request=1.0, body=10):
        asyncio.run(main())


def test_the_second_request_of_a_connection_is_not_waited_for_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with served() as connect:
            client = await connect()
            await answer(client, HEAD + b"\r\n")
            client[1].write(HEAD)
            assert await is_cut(client)

    with times(monkeypatch, request=1.0, body=10):
        asyncio.run(main())


def test_a_body_may_be_slow_but_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served() as connect:
            slow, still = await connect(), await connect()
            still[1].write(POST + b"ab")
            slow[1].write(POST)
            for byte in b"abc":
                await asyncio.sleep(0.6)
                slow[1].write(bytes([byte]))
            assert await answer(slow, b"d")
            assert await is_cut(still)

    with times(monkeypatch, request=10, body=1.5):
        asyncio.run(main())


def test_who_waits_for_us_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served() as connect:
            stream, large = await connect(), await connect()
            await answer(stream, HEAD.replace(b"/", b"/stream", 1) + b"\r\n")
            size = 1 << 20  # more than is taken in before anyone reads it
            head = POST.replace(b"/", b"/slow", 1).replace(b"4", b"%d" % size)
            assert await answer(large, head + bytes(size))
            assert not await is_cut(stream, 1.5)

    with times(monkeypatch, request=1.0, body=1.0):
        asyncio.run(main())


def test_who_takes_nothing_of_an_answer_keeps_no_open_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transport that is closed waits until what it holds is taken, which may be never."""

    async def see() -> None:
        state = ServerState()
        async with served(state=state) as connect:
            reader, writer = await connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(MUCH)
            while not state.connections:
                await asyncio.sleep(0.01)
            (held,) = state.connections
            while not held.transport.is_closing():
                await asyncio.sleep(0.01)
            assert held.transport.get_write_buffer_size() > 0
            while state.connections:
                await asyncio.sleep(0.05)
            assert reader

    monkeypatch.setattr(connections, "ANSWER_SECONDS", 1.0)
    asyncio.run(see())


def test_who_takes_an_answer_slowly_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def see() -> None:
        async with served() as connect:
            reader, writer = await connect()
            writer.write(MUCH)
            taken = 0
            while piece := await reader.read(200_000):
                taken += len(piece)
                await asyncio.sleep(0.05)
            assert taken > 2 * len(PIECE)

    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    asyncio.run(see())


def test_where_there_is_no_room_the_one_that_owes_the_longest_leaves() -> None:
    async def main() -> None:
        async with served(most=3) as connect:
            stream = await connect()
            await answer(stream, HEAD.replace(b"/", b"/stream", 1) + b"\r\n")
            first, second = await connect(), await connect()
            await asyncio.sleep(0.1)
            assert await answer(await connect(), HEAD + b"\r\n")
            assert await is_cut(first)
            assert not await is_cut(second, 0.2) and not await is_cut(stream, 0.2)

    asyncio.run(main())


def test_where_all_are_answered_a_new_one_is_refused() -> None:
    async def main() -> None:
        async with served(most=1) as connect:
            stream = await connect()
            await answer(stream, HEAD.replace(b"/", b"/stream", 1) + b"\r\n")
            assert await is_cut(await connect())
            assert not await is_cut(stream, 0.2)

    asyncio.run(main())


def test_open_files_are_raised_and_some_are_kept_for_the_daemon() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lower = min(before[0], before[1], 512) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (lower, before[1]))
        assert raise_open_files(most=lower + 1) == lower + 1
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == lower + 1
        assert raise_open_files(most=10) == lower + 1, "it is never lowered"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert max_connections(1024) == 768
