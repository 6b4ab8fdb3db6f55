"""Any order of calls: a store says what a dictionary would say."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fakes import MemoryDisk
from headrace.storage import HostArena, Misuse, NotCommitted, TensorStore
from store_cases import fill, payload, small_records, volumes_in

KEEP = 1
RECORDS = small_records(2, num_elements=300)
State = dict[int, int]  # record index -> value


class StoreMachine(RuleBasedStateMachine):
    """Writes, commits, keeps, releases, aborts, reopens, beside a model of plain dictionaries."""

    @initialize(num_volumes=st.integers(1, 3))
    def create(self, num_volumes: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.volumes = volumes_in(Path(self.folder.name), num_volumes)
        self.arena = HostArena(1 << 20)
        self.slot = self.arena.carve(1 << 16)
        self.disk = MemoryDisk()
        self.store = TensorStore.create(
            self.volumes,
            RECORDS,
            name="job",
            reserve_bytes=0,
            stripe_bytes=4096,
            keep_generations=KEEP,
            open_volume=self.disk.open,
        )
        self.committed: dict[int, State] = {}  # live and kept commits by generation
        self.live = 0
        self.kept: set[int] = set()
        self.working: State | None = None
        self.values = 0

    @rule(step=st.integers(0, 99))
    def begin(self, step: int) -> None:
        self.store.begin(step)
        if self.working is None:
            self.working = {}

    @precondition(lambda self: self.working is not None)
    @rule(index=st.integers(0, len(RECORDS) - 1))
    def write(self, index: int) -> None:
        assert self.working is not None
        self.values += 1
        fill(self.slot, RECORDS[index], self.values)
        self.store.write_from(RECORDS[index].name, self.slot).result()
        self.working[index] = self.values

    @precondition(lambda self: self.working is not None)
    @rule()
    def commit(self) -> None:
        assert self.working is not None
        before = self.committed.get(self.live, {})
        if self.live not in self.kept:
            self.committed.pop(self.live, None)
        self.live += 1
        self.committed[self.live] = before | self.working
        self.working = None
        assert self.store.commit({"live": self.live}).generation == self.live

    @rule(indexes=st.sets(st.integers(0, len(RECORDS) - 1), min_size=1))
    def whole_step(self, indexes: set[int]) -> None:
        self.begin(1)
        for index in indexes:
            self.write(index)
        self.commit()

    @precondition(lambda self: self.live > 0 and len(self.kept) < KEEP)
    @rule()
    def keep_newest(self) -> None:
        self.keep(0)

    @rule()
    def abort(self) -> None:
        self.store.abort()
        self.working = None

    @rule(back=st.integers(0, 3))
    def keep(self, back: int) -> None:
        generation = self.live - back
        if generation not in self.committed:
            with pytest.raises(NotCommitted):
                self.store.keep(generation)
        elif generation not in self.kept and len(self.kept) == KEEP:
            with pytest.raises(Misuse):
                self.store.keep(generation)
        else:
            self.store.keep(generation)
            self.kept.add(generation)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.kept) or [0]))
        if generation not in self.kept:
            with pytest.raises(NotCommitted):
                self.store.release(generation)
            return
        self.store.release(generation)
        self.kept.remove(generation)
        if generation != self.live:
            del self.committed[generation]

    @precondition(lambda self: self.live > 0)
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = TensorStore.open(self.volumes, name="job", open_volume=self.disk.open)
        self.working = None

    @invariant()
    def says_what_the_model_says(self) -> None:
        found = {one.generation: one.kept for one in self.store.commits()}
        assert found == {generation: generation in self.kept for generation in self.committed}
        for generation, state in self.committed.items():
            self._check(state, generation=generation)
        newest = self.committed.get(self.live, {}) | (self.working or {})
        self._check(newest)

    def _check(self, state: State, **which: Any) -> None:
        for index, record in enumerate(RECORDS):
            if index not in state:
                with pytest.raises(NotCommitted):
                    self.store.read_into(record.name, self.slot, **which)
                continue
            self.store.read_into(record.name, self.slot, **which).result()
            found = payload(self.slot, record)
            fill(self.slot, record, state[index])
            assert found == payload(self.slot, record)

    def teardown(self) -> None:
        self.store.close()
        self.arena.close()
        self.folder.cleanup()


StoreMachine.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate),  # making a failure shorter takes minutes here
)
TestAnyOrderOfCalls = StoreMachine.TestCase
