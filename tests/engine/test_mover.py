"""Which updates are brought home and which are dropped."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.engine.mover import Mover
from headrace.engine.visits import Visit
from headrace.engine.workspace import RingSlot

UPDATE = Visit(record=0, action="update", reads="state", writes=True, phase="optimizer")
OWED = Visit(record=0, action="forward", reads="state", writes=True, phase="forward", pending=True)


@pytest.mark.parametrize(
    ("visit", "drop_writes", "comes_home"),
    [(UPDATE, False, True), (UPDATE, True, False), (OWED, False, True), (OWED, True, True)],
)
def test_a_step_that_is_dropped_drops_nothing_of_the_step_before(
    visit: Visit, drop_writes: bool, comes_home: bool
) -> None:
    """A pending update may still be on its way when its step turns out not to be finite."""
    written: list[bool] = []

    def take_update(*, is_guess: bool) -> Any:
        written.append(is_guess)
        return memory

    memory = SimpleNamespace(tensor=lambda dtype, size: None)
    work = SimpleNamespace(
        ring=[],
        closing=lambda resource: resource,
        plan=SimpleNamespace(on_host=()),
        spec=SimpleNamespace(records=[SimpleNamespace(name="a")]),
        records={"a": SimpleNamespace(padded_bytes=8)},
        homes={"a": SimpleNamespace(take_update=take_update, written=None)},
        transfer=SimpleNamespace(to_host=lambda source, target, after: None),
    )
    mover = Mover(cast(Any, work))
    mover.drop_writes = drop_writes
    mover.release(visit, RingSlot(cast(Any, memory)))
    mover.close()
    assert written == [False] * comes_home
