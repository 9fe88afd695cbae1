"""The records held against a model in plain Python, by whatever sequence of calls
hypothesis comes up with.
"""

import itertools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gpuyard.domain.errors import RefusedError
from gpuyard.verification.classes import Class
from gpuyard.verification.database import Database
from gpuyard.verification.records import Records
from tests.support.examples import examples
from tests.support.postgres import PostgresServer
from tests.support.verification import A, B, HandClock, add_workload

KEEP_S = 100.0
MOST_SERIES = 6
CLASSES = st.sampled_from([A, B])


@dataclass
class WorkloadModel:
    cls: Class
    made_at: float
    series: set[str]
    left: set[str]
    answered: bool = False
    batch: str | None = None
    retired_at: float | None = None


@dataclass
class BatchModel:
    made_at: float
    released: bool = False
    ended: bool = False
    workloads: set[str] = field(default_factory=set)


class RecordsMachine(RuleBasedStateMachine):
    """Subclasses say where the database is."""

    batches = Bundle("batches")
    workloads = Bundle("workloads")

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.database = Database.open(self.place())
        self.records = Records(self.database, self.clock.now)
        self.numbers = itertools.count()
        self.works: dict[str, WorkloadModel] = {}
        self.batch: dict[str, BatchModel] = {}
        self.series: dict[Class, list[str]] = {A: [], B: []}
        self.used_series: set[str] = set()
        self.ever_taken: set[str] = set()
        self.checks: set[str] = set()

    def place(self) -> Path | str:
        raise NotImplementedError

    def teardown(self) -> None:
        self.database.close()

    # --- what is done ---

    @rule(cls=CLASSES, count=st.integers(0, 8))
    def add_series(self, cls: Class, count: int) -> None:
        self.clock.advance(1)
        expected_room = (
            MOST_SERIES
            - len(self.series[cls])
            + len(self.used_series & set(self.series[cls]))
        )
        assert self.records.series_room(cls, MOST_SERIES) == expected_room
        blobs = [f"{next(self.numbers):064x}" for _ in range(count)]
        added = self.records.add_series(cls, blobs, 1, MOST_SERIES)
        assert added == min(count, expected_room)
        excess = max(len(self.series[cls]) + added - MOST_SERIES, 0)
        gone = [one for one in self.series[cls] if one in self.used_series][:excess]
        found = [one.id for one in self.records.series(cls)]
        assert found[: len(found) - added] == [
            one for one in self.series[cls] if one not in gone
        ]
        self.series[cls] = found

    @rule(
        target=workloads,
        cls=CLASSES,
        size=st.integers(1, 4),
        random=st.randoms(use_true_random=False),
    )
    def add_workload(self, cls: Class, size: int, random: Random) -> str | None:
        self.clock.advance(1)
        mine = random.sample(self.series[cls], min(size, len(self.series[cls])))
        if not mine:
            return None
        hidden = [(one, f"prompt {next(self.numbers)}") for one in mine]
        blob = f"{next(self.numbers):064x}"
        workload_id = add_workload(
            self.records, cls, random.getrandbits(64) - 2**63, blob, hidden
        )
        prompts = {prompt for _, prompt in hidden}
        self.works[workload_id] = WorkloadModel(
            cls, self.clock.now(), set(mine), prompts
        )
        return workload_id

    @rule(workload_id=workloads)
    def finish(self, workload_id: str | None) -> None:
        if workload_id not in self.works:
            return
        work = self.works[workload_id]
        done = self.records.finish_workload(
            workload_id, {prompt: f"to {prompt}" for prompt in work.left}
        )
        assert done == (not work.answered and work.retired_at is None)
        work.answered = work.answered or done

    @rule(target=batches)
    def new_batch(self) -> str:
        batch_id = self.records.new_batch("me")
        self.batch[batch_id] = BatchModel(self.clock.now())
        return batch_id

    @rule(batch_id=batches, cls=CLASSES, count=st.integers(0, 9))
    def take(self, batch_id: str, cls: Class, count: int) -> None:
        batch = self.batch[batch_id]
        if batch.released or batch.ended:
            with pytest.raises(RefusedError):
                self.records.take(cls, count, batch_id)
            return
        free = {
            name: work
            for name, work in self.works.items()
            if self._free(work, cls, batch_id)
        }
        taken = self.records.take(cls, count, batch_id)
        assert len(taken) == min(
            count, sum(len(work.left) for work in free.values())
        ), "all, or as many as there are"
        for one in taken:
            work = free[one.workload_id]
            assert one.hidden in work.left, "a sample is taken once, ever"
            assert one.answer == f"to {one.hidden}"
            assert (
                one.check_id not in self.checks and one.sample_id not in self.ever_taken
            )
            work.left.remove(one.hidden)
            assert work.batch in (None, batch_id), "a workload belongs to one batch"
            work.batch = batch_id
            self.used_series.add(one.series_id)
            self.checks.add(one.check_id)
            self.ever_taken.add(one.sample_id)

    def _free(self, work: WorkloadModel, cls: Class, batch_id: str) -> bool:
        usable = work.cls is cls and work.answered and work.retired_at is None
        return usable and work.batch in (None, batch_id) and bool(work.left)

    @rule(batch_id=batches)
    def release(self, batch_id: str) -> None:
        self.records.release_batch(batch_id)
        self.batch[batch_id].released = True
        self._retire_of(batch_id)

    @rule(batch_id=consumes(batches))
    def end(self, batch_id: str) -> None:
        self.records.end_batch(batch_id, "done")
        self.batch[batch_id].ended = True
        self._retire_of(batch_id)

    def _retire_of(self, batch_id: str) -> None:
        for work in self.works.values():
            if work.batch == batch_id and work.retired_at is None:
                work.retired_at = self.clock.now()

    @rule(cls=CLASSES, seconds=st.sampled_from([1.0, KEEP_S / 2, KEEP_S * 2]))
    def evict(self, cls: Class, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.now()
        before = now - KEEP_S
        self.records.retire_stale(cls, before)
        old = self.records.expired(cls, before)
        self.records.remove_expired(old)
        for batch in self.batch.values():
            batch.ended = batch.ended or batch.made_at < before
        for name, work in list(self.works.items()):
            if work.cls is not cls:
                continue
            over = work.batch is not None and self.batch[work.batch].ended
            if work.retired_at is None and (
                over or (not work.answered and work.made_at < before)
            ):
                work.retired_at = now
            busy = work.batch is not None and not self.batch[work.batch].ended
            removed = (
                work.retired_at is not None and work.retired_at < before and not busy
            )
            assert (name in old.workloads) == removed
            if removed:
                del self.works[name]
        needed = set().union(*(work.series for work in self.works.values()))
        assert needed.isdisjoint(old.series), (
            "a series is kept while a workload needs it"
        )
        assert set(self.series[cls]).isdisjoint(old.series)

    # --- what always holds ---

    @invariant()
    def counts_are_the_models(self) -> None:
        for cls in (A, B):
            mine = [work for work in self.works.values() if work.cls is cls]
            found = self.records.counts(cls)
            is_open = [
                work for work in mine if work.batch is None and work.retired_at is None
            ]
            assert found.series == len(self.series[cls])
            assert found.ready == sum(
                len(work.left) for work in is_open if work.answered
            )
            assert found.waiting == sum(
                len(work.left) for work in is_open if not work.answered
            )
            assert found.retired == sum(
                len(work.left) for work in mine if work not in is_open
            )
            assert found.used == sum(len(work.series) - len(work.left) for work in mine)
            assert {one.id for one in self.records.unfinished(cls)} == {
                name
                for name, work in self.works.items()
                if work.cls is cls and not work.answered and work.retired_at is None
            }


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def test_in_sqlite() -> None:
    with tempfile.TemporaryDirectory(prefix="gy-model-") as folder:
        names = itertools.count()

        class InSqlite(RecordsMachine):
            def place(self) -> Path:
                return Path(folder) / f"{next(names)}.db"

        limits = settings(
            max_examples=examples(40),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=QUIET,
        )
        run_state_machine_as_test(InSqlite, settings=limits)


def test_in_postgresql(postgres: PostgresServer) -> None:
    class InPostgresql(RecordsMachine):
        def place(self) -> str:
            return postgres.create()

    limits = settings(
        max_examples=examples(8),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=QUIET,
    )
    run_state_machine_as_test(InPostgresql, settings=limits)
