"""What is remembered: samples that are used once, locks between servers, events told
once a day.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpuyard.domain.errors import RefusedError
from gpuyard.storage.blobs import BlobStore
from gpuyard.verification import database as database_module
from gpuyard.verification.context import Context
from gpuyard.verification.database import Database, DatabaseError
from gpuyard.verification.metrics import figures, render_metrics
from gpuyard.verification.records import Records
from gpuyard.verification.records.events import DAY_S, EventSubtype, PipelineEventKind
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.records.samples import SampleCounts
from gpuyard.verification.settlement import kept_free_until
from gpuyard.verification.tables import versions
from tests.support.verification import (
    A,
    B,
    HandClock,
    add_workload,
    answer_to,
    put_executor,
    stock,
)

pytestmark = pytest.mark.both_databases


def test_samples_come_from_as_few_workloads_as_can_be(
    records: Records, blobs: BlobStore
):
    stock(records, blobs, B, workloads=3)
    assert records.counts(B) == SampleCounts(
        series=6, used=0, ready=18, waiting=0, retired=0
    )
    first = records.new_batch("one")
    second = records.new_batch("two")
    assert len({one.workload_id for one in records.take(B, 7, first)}) == 2
    assert records.counts(B) == SampleCounts(6, used=7, ready=6, waiting=0, retired=5)
    mine = records.take(B, 5, first)
    assert len({one.workload_id for one in mine}) == 1, (
        "what a batch has is used before another workload is"
    )
    others = records.take(B, 100, second)
    assert len(others) == 6
    assert {one.workload_id for one in others}.isdisjoint(
        one.workload_id for one in mine
    )
    assert records.take(B, 1, first) == records.take(B, 1, second) == []
    assert records.take(A, 1, first) == []


def test_a_taken_sample_is_whole(records: Records, blobs: BlobStore):
    stock(records, blobs, B, workloads=1)
    (one,) = records.take(B, 1, records.new_batch("one"))
    assert one.check_id.startswith("chk_")
    workload = records.workload(one.workload_id)
    assert workload and workload.seed == one.seed
    assert one.hidden.encode() in blobs.open(one.blob).read()
    assert one.answer == answer_to(one.hidden, one.seed)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1, 0])
def test_a_seed_is_any_signed_64_bit_number(records: Records, seed: int):
    records.add_series(B, ["a" * 64], 1, 100)
    (series,) = records.series(B)
    workload_id = add_workload(records, B, seed, "b" * 64, [(series.id, "what?")])
    found = records.workload(workload_id)
    assert found and found.seed == seed


def test_nothing_is_taken_for_a_batch_whose_seeds_are_out(
    records: Records, blobs: BlobStore
):
    stock(records, blobs, B, workloads=2)
    batch = records.new_batch("one")
    ended = records.new_batch("one")
    records.take(B, 2, batch)
    records.release_batch(batch)
    assert records.counts(B) == SampleCounts(6, used=2, ready=6, waiting=0, retired=4)
    records.end_batch(ended, "done")
    for closed in (batch, ended, "batch_none"):
        with pytest.raises(RefusedError, match="takes no more samples"):
            records.take(B, 1, closed)
    assert records.samples_ready(B) == 6
    assert [row["id"] for row in records.open_batches()] == [batch]


def test_answers_are_kept_whole_or_not_at_all(records: Records):
    records.add_series(B, ["a" * 64, "b" * 64], 1, 100)
    hidden = [
        (one.id, f"prompt {place}") for place, one in enumerate(records.series(B))
    ]
    workload_id = add_workload(records, B, 5, "c" * 64, hidden)
    with pytest.raises(KeyError):
        records.finish_workload(workload_id, {"prompt 0": "x"})
    assert records.counts(B).waiting == 2
    assert [one.id for one in records.unfinished(B)] == [workload_id]
    assert records.finish_workload(workload_id, {"prompt 0": "x", "prompt 1": "y"})
    assert not records.finish_workload(workload_id, {"prompt 0": "z", "prompt 1": "z"})
    taken = records.take(B, 2, records.new_batch("one"))
    assert {(one.hidden, one.answer) for one in taken} == {
        ("prompt 0", "x"),
        ("prompt 1", "y"),
    }


def test_series_never_exceed_their_most_and_the_oldest_used_go(
    records: Records, blobs: BlobStore, clock: HandClock
):
    stock(records, blobs, B, workloads=1)
    used = records.take(B, 2, records.new_batch("one"))
    assert records.series_room(B, most=6) == 2
    clock.advance(1)
    fresh = [f"{number:064x}" for number in range(5)]
    assert records.add_series(B, fresh, 1, most=6) == 2, (
        "two were used, so two make room"
    )
    live = {one.id for one in records.series(B)}
    assert len(live) == records.series_count(B) == 6
    assert live.isdisjoint(one.series_id for one in used)
    assert records.series_room(B, most=6) == 0
    assert records.add_series(B, fresh[2:], 1, most=6) == 0
    assert records.add_series(B, fresh[2:], 1, most=3) == 0, (
        "nor when there are more than may be"
    )
    assert records.add_series(B, fresh[:3], 1, most=100) == 1, (
        "those that are there already are left out"
    )
    assert records.series_count(A) == 0


def test_shortages_are_told_once_a_day_for_each_class(
    records: Records, clock: HandClock
):
    def tell(cls=A, subtype=EventSubtype.INSUFFICIENT_PROMPTS) -> bool:
        return records.event(PipelineEventKind.SAMPLING, subtype, cls, series=1)

    assert [tell(), tell(), tell(B), tell(B)] == [True, False, True, False]
    assert [tell(subtype=EventSubtype.TRUSTED_NOT_CONFIGURED) for _ in range(2)] == [
        True,
        False,
    ]
    assert [tell(subtype=EventSubtype.SKIPPED) for _ in range(2)] == [True, True]
    clock.advance(DAY_S - 1)
    assert not tell()
    clock.advance(1)
    assert [tell(), tell()] == [True, False]
    found = records.events()
    assert {event.gpu_class for event in found} == {"practice-12", "practice-6"}
    assert [event.seq for event in found] == sorted(event.seq for event in found)
    assert [event.gpu_class for event in records.events(B)] == ["practice-6"]
    assert records.events(after=found[-1].seq) == []
    assert found[0].data == {"series": 1}


def test_a_lease_is_one_holders_until_it_is_over(records: Records, clock: HandClock):
    assert records.lease("x", "one", 60)
    assert not records.lease("x", "two", 60)
    assert records.lease("y", "two", 60)
    clock.advance(50)
    assert records.renew("x", "one", 60)
    clock.advance(50)
    assert not records.lease("x", "two", 60)
    clock.advance(11)
    assert records.lease("x", "two", 60)
    assert not records.renew("x", "one", 60)
    records.release("x", "one")
    assert not records.lease("x", "one", 60), "who lost it cannot let it go"
    records.release("x", "two")
    assert records.lease("x", "one", 60)


def test_a_check_is_scored_once(records: Records, blobs: BlobStore):
    stock(records, blobs, B, workloads=1)
    batch = records.new_batch("one")
    taken = records.take(B, 2, batch)
    common = {"batch_id": batch, "gpu_class": B.value, "state": "queued"}
    records.add_checks(
        [
            {
                **common,
                "id": one.check_id,
                "executor": f"e{place}",
                "sample_id": one.sample_id,
            }
            for place, one in enumerate(taken)
        ]
    )
    told: list[float | None] = []

    def record_after(
        known: ExecutorRecord | None,
        row: Mapping[str, object],
        history: Sequence[str],
    ) -> ExecutorRecord:
        assert history[0] == "passed" or known, "the newest comes first"
        told.append(known and known.alpha)
        return (
            replace(known, alpha=known.alpha + 1)
            if known
            else ExecutorRecord(str(row["executor"]), B.value, 1, 1, 0)
        )

    over = {
        "id": taken[0].check_id,
        "executor": "e0",
        "state": "over",
        "outcome": "passed",
        "claims": {"vram": [1]},
    }
    records.close_checks([over], record_after)
    records.close_checks(
        [{**over, "outcome": "failed"}, {**over, "id": taken[1].check_id}],
        record_after,
    )
    found = records.check(taken[0].check_id)
    assert found and (found["outcome"], found["state"], found["claims"]) == (
        "passed",
        "over",
        {"vram": [1]},
    )
    assert told == [None, 1.0], "the same check again changes nothing"
    assert len(records.checks_of(batch)) == 2
    assert {row["id"] for row in records.checks_by("e0")} == {
        one.check_id for one in taken
    }
    with pytest.raises(DatabaseError):
        records.add_checks([{**found, "id": "chk_other"}])
    assert records.check("chk_none") is None


def close_in_order(records: Records, *outcomes: str) -> list[Sequence[str]]:
    """Close checks of e0 that began a second apart; returns the history of each."""
    batch = records.new_batch("one")
    rows = [
        {
            "id": f"chk_{number:03}",
            "batch_id": batch,
            "executor": "e0",
            "gpu_class": B.value,
            "sample_id": f"smp_{number}",
            "state": "open",
            "created_at": float(number),
        }
        for number in range(len(outcomes))
    ]
    records.add_checks(rows)
    told: list[Sequence[str]] = []

    def record_after(
        known: ExecutorRecord | None,
        row: Mapping[str, object],
        history: Sequence[str],
    ) -> ExecutorRecord:
        told.append(history)
        return known or ExecutorRecord("e0", B.value, 1, 1, 0)

    records.close_checks(
        [
            {"id": row["id"], "executor": "e0", "outcome": outcome}
            for row, outcome in zip(rows, outcomes, strict=True)
        ],
        record_after,
    )
    return told


def test_checks_that_say_nothing_push_no_others_out_of_the_history(records: Records):
    """Else who is unexplained four times would only have to wait for our own faults."""
    nothing = ["blameless", "unjudged"] * 30
    told = close_in_order(records, *["unexplained"] * 4, *nothing, "unexplained")
    assert told[-2] == ["unjudged", *["unexplained"] * 4]
    assert told[-1] == ["unexplained"] * 5
    assert records.outcomes_after("chk_064") == told[-1]
    # Checks come a second apart, so a place is kept free for the next two.
    assert kept_free_until(records, "e0", 1000.0) == 1002.0


def test_who_waits_for_long_is_not_forgotten(records: Records):
    """Else work would push what an executor said of its engine out of the history."""
    others = ["other_engine", "passed"] * 4
    told = close_in_order(records, *others, *["waited"] * 100, "other_engine")
    assert list(told[-1]).count("other_engine") == 5
    assert list(told[-1]).count("passed") == 4


def test_the_history_of_a_check_begins_with_its_own_outcome(records: Records):
    """Though one that began later was over before, as with two watches."""
    close_in_order(records, "unexplained", "failed", "passed")
    assert records.outcomes_after("chk_000") == ["unexplained", "passed", "failed"]
    assert records.outcomes_after("chk_001") == ["failed", "passed", "unexplained"]


def test_a_trusted_engine_that_was_another_for_a_time_has_to_be_accepted(
    records: Records, blobs: BlobStore
):
    """Its answers of that time are not those of the engine that is back."""
    engine = {"engine": "1"}
    other = {"engine": "2"}
    stock(records, blobs, B, workloads=1)
    records.note_runtime(B, engine)
    records.note_runtime(B, engine)
    assert records.samples_ready(B) == 6
    records.note_runtime(B, other)
    assert records.samples_ready(B) == 0
    stock(records, blobs, B, workloads=1, seed=2)
    records.note_runtime(B, engine)
    known = records.trusted_runtime(B)
    assert known and (known.accepted, known.newest) == (engine, other)
    assert records.accept_runtime(B, engine)
    assert records.samples_ready(B) == 0
    assert not records.accept_runtime(B, engine)


def test_executors_ranges_and_receipts(records: Records, clock: HandClock):
    one = ExecutorRecord("e1", A.value, 2.5, 1.0, 100.0)
    put_executor(records, one)
    put_executor(
        records, again := ExecutorRecord("e1", A.value, 3.5, 1.0, 200.0, 300.0, 2)
    )
    assert records.executor("e1") == again != one
    assert records.executor("e2") is None
    records.put_ranges(A, {"solve_s": (0, 5.5), "matmul": (10, 20)})
    records.put_ranges(A, {"matmul": (11, 21)})
    found = records.ranges(A)
    assert {name: (one.low, one.high) for name, one in found.items()} == {
        "solve_s": (0, 5.5),
        "matmul": (11, 21),
    }
    assert found["matmul"].calibrated_at == clock.now()
    assert records.ranges(B) == {}
    assert [records.use_receipt(name) for name in ("r1", "r2", "r1")] == [
        True,
        True,
        False,
    ]


def test_what_fails_in_a_transaction_is_undone(records: Records):
    with pytest.raises(RuntimeError), records.database.writing() as tx:
        tx.execute(versions.insert().values(version=99))
        raise RuntimeError
    with records.database.reading() as tx:
        assert tx.scalar(sa.select(sa.func.max(versions.c.version))) == 1


def test_a_database_is_opened_again_and_a_newer_one_is_not(place: Path | str):
    first = Database.open(place)
    assert Records(first).event(PipelineEventKind.BATCH, EventSubtype.STARTED, A)
    first.close()
    second = Database.open(place)
    assert len(Records(second).events()) == 1
    with second.writing() as tx:
        tx.execute(versions.update().values(version=2))
    second.close()
    with pytest.raises(DatabaseError, match="newer gpuyard"):
        Database.open(place)


def test_where_there_can_be_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    (tmp_path / "text.db").write_text("no database at all, but text" * 100)
    for place in (
        tmp_path / "file" / "x.db",
        tmp_path / "text.db",
        "postgresql://u:secret@127.0.0.1:1/none",
        "x://",
    ):
        with pytest.raises(DatabaseError) as caught:
            Database.open(place)
        assert "secret" not in str(caught.value)
    monkeypatch.setattr(database_module, "network_filesystem", lambda path: "nfs4")
    with pytest.raises(DatabaseError, match="network file system"):
        Database.open(tmp_path / "net.db")


def test_other_people_cannot_read_a_file(tmp_path: Path):
    path = tmp_path / "new" / "verification.db"
    opened = Database.open(path)
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    opened.close()


def test_questions_have_their_indexes(records: Records):
    inspector = sa.inspect(records.database._engine)
    schema = None if records.database.sqlite else "verification"
    assert ["gpu_class", "finished_at"] in [
        i["column_names"] for i in inspector.get_indexes("workloads", schema)
    ]
    assert ["gpu_class", "created_at"] in [
        i["column_names"] for i in inspector.get_indexes("series", schema)
    ]
    unique = [
        one["column_names"]
        for one in inspector.get_unique_constraints("samples", schema)
    ]
    assert [set(names) for names in unique] == [{"series_id", "workload_id"}]


def test_figures_for_people_and_for_prometheus(records: Records, blobs: BlobStore):
    assert figures(records) == []
    stock(records, blobs, B, workloads=2)
    records.take(B, 4, records.new_batch("one"))
    put_executor(records, ExecutorRecord("e1", B.value, 1, 1, 0))
    records.event(PipelineEventKind.ANSWERING, EventSubtype.SUCCESS, B)
    (one,) = figures(records)
    assert (
        one.gpu_class,
        one.executors,
        one.series,
        one.used,
        one.ready,
        one.retired,
    ) == ("practice-6", 1, 6, 4, 6, 2)
    text, kind = render_metrics(records)
    assert kind.startswith("text/plain")
    for line in (
        'samples{gpu_class="practice-6",state="ready"} 6.0',
        'series{gpu_class="practice-6"} 6.0',
        (
            'events{gpu_class="practice-6",kind="LLM_PROMPT_ANSWERING",subtype="SUCCESS"} 1.0'
        ),
    ):
        assert f"gpuyard_verification_{line}\n" in text.decode()


def test_random_seeds_differ_and_use_all_their_bits():
    context = Context(None, None, lambda cls: None)  # type: ignore[arg-type]
    drawn = [context.draw_seed() for _ in range(2000)]
    assert len(set(drawn)) == 2000
    assert min(drawn) < 0 < max(drawn)
    assert all(-(2**63) <= one < 2**63 for one in drawn)
    assert isinstance(context.random, random.SystemRandom)
