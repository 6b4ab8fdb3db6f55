"""Slots for the tests of the store."""

from collections.abc import Iterator

import pytest

from headrace.storage import HostArena, HostSlot


@pytest.fixture
def arena() -> Iterator[HostArena]:
    """8 MiB of host memory."""
    with HostArena(8 << 20) as arena:
        yield arena


@pytest.fixture
def slot(arena: HostArena) -> HostSlot:
    """A slot of 1 MiB."""
    return arena.carve(1 << 20)


@pytest.fixture
def other_slot(arena: HostArena) -> HostSlot:
    """A second slot of 1 MiB."""
    return arena.carve(1 << 20)
