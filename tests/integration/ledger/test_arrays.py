"""Reading arrays and their tasks, in both databases."""

from decimal import Decimal

import msgspec
import pytest

from gpuyard.controller.array_events import ArraySubmission, PreparedArray
from gpuyard.controller.intake import Intake
from gpuyard.domain.arrays import array_range, exact_amount
from gpuyard.domain.ids import new_id
from gpuyard.domain.tiers import Tiers
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.queries import JobFilter
from gpuyard.ledger.replay import check
from gpuyard.ledger.retention import (
    RetentionLimits,
    arrays_without_tasks,
    removal_event,
    rows_of_jobs,
)
from gpuyard.ledger.retention_plan import plan
from gpuyard.ledger.writer import Writer
from tests.support.life import Life

pytestmark = pytest.mark.anyio
NEVER = RetentionLimits(None, None, 0.0, None, None, None, None, 0)


def submission(array: str, user: str, key: str | None = None, **fields: object):
    body = {"name": "sweep", "command": ["train", "{i}"], **fields}
    raw = msgspec.Raw(msgspec.json.encode(body))
    (job, _) = Intake(Tiers()).read(raw, user)
    wanted = array_range(array)
    task_ids = [new_id("job") for _ in wanted.indices]
    return PreparedArray(new_id("array"), key, job, wanted, task_ids)


@pytest.fixture
async def life(ledger: Ledger, writer: Writer) -> Life:
    """What happens is in the ledger when `write` has been awaited."""
    return Life()


async def write(writer: Writer, life: Life) -> None:
    writer.add_events(life.journal)
    await writer.committed()
    life.journal.clear()


async def test_an_array_is_read_with_its_tasks(
    ledger: Ledger, writer: Writer, life: Life
):
    first = submission("0-2", "ann", labels={"a": "b"}, priority=5)
    second = submission("4,7%1", "bob", key="k")
    for array in (first, second):
        for event in ArraySubmission(array, 1000.0):
            life.record(event)
    life.end(life.run(first.task_ids[0]), exit_code=0)
    life.end(life.run(first.task_ids[1]), exit_code=1)
    await write(writer, life)
    queries = ledger.queries

    def found(**wanted: object) -> list[str]:
        page = queries.arrays_page(limit=9, wanted=JobFilter(**wanted))
        return [row["id"] for row in page]

    assert found() == [second.id, first.id]
    assert found(labels={"a": "b"}) == found(user="ann") == [first.id]
    assert found(states=["failed"]) == [first.id]
    assert found(names=["s*"], states=["queued"]) == [second.id, first.id]
    assert found(project="none") == []
    assert [row["id"] for row in queries.arrays_page(limit=1, before=second.id)] == [
        first.id
    ]
    assert queries.jobs_page(limit=9, wanted=JobFilter(without_tasks=True)) == []
    theirs = queries.jobs_page(limit=9, wanted=JobFilter(user="bob"))
    assert [row["array_index"] for row in theirs] == [7, 4]
    counts = {
        (row["array_id"], row["state"]): row["n"]
        for row in queries.task_counts([first.id, second.id])
    }
    assert counts == {
        (first.id, "completed"): 1,
        (first.id, "failed"): 1,
        (first.id, "queued"): 1,
        (second.id, "queued"): 2,
    }
    (cost,) = queries.array_costs(first.id)
    attempts = queries.attempts_of(first.task_ids)
    paid = sum(Decimal(row["cost"]) for rows in attempts.values() for row in rows)
    assert exact_amount(cost["amount"]) == paid > 0
    assert queries.array_costs(second.id) == []
    assert (cost["currency"], cost["tier"]) == ("USD", "GPU_SMALL")
    assert queries.task_ids(first.id, failed=True) == [first.task_ids[1]]
    assert queries.task_ids(first.id, queued=True) == [first.task_ids[2]]
    assert queries.task_id(second.id, 7) == second.task_ids[1]
    assert queries.task_id(second.id, 5) is None
    assert queries.array_of(first.task_ids[0]) == first.id
    assert queries.find_array_ids(first.id[-9:]) == [first.id]
    assert queries.find_array_ids("_") == []
    assert queries.own_specs(first.id) == {}
    by_key = queries.array_by_key("k")
    assert by_key and (by_key["id"], by_key["at_most"]) == (second.id, 1)
    assert queries.limited_arrays() == [{"id": second.id, "at_most": 1}]
    assert queries.users_of_arrays([first.id]) == {first.id: "ann"}
    task = second.task_ids[1]
    assert queries.submitters_of([task]) == {task: "bob"}
    assert queries.specs([task])[task]["command"] == ["train", "7"]
    assert '"train", "{i}"' in queries.spec_texts([task])[task].replace('","', '", "')
    assert not check(ledger.engine).differences


async def test_an_array_without_tasks_goes_when_its_key_cannot_come_again(
    ledger: Ledger, writer: Writer, life: Life
):
    kept = submission("0-1", "ann")
    gone = submission("0-1", "ann", key="k")
    for array in (kept, gone):
        for event in ArraySubmission(array, 1000.0):
            life.record(event)
    await write(writer, life)
    with ledger.engine.connect() as tx:
        keys = rows_of_jobs(tx, gone.task_ids)
    writer.add_events([removal_event(keys, 2000.0)])
    await writer.committed()
    assert ledger.read(arrays_without_tasks, NEVER) == []
    assert ledger.queries.find_array_ids(gone.id) == []
    assert ledger.queries.find_array_ids(kept.id) == [kept.id]
    forgotten = RetentionLimits(None, None, 1001.0, None, None, None, None, 0)
    assert ledger.read(arrays_without_tasks, forgotten) == [gone.id]


async def test_the_preview_counts_the_arrays_that_lose_their_last_task(
    ledger: Ledger, writer: Writer, life: Life
):
    half_over = submission("0-1", "ann")
    over = submission("0-1", "ann")
    keyed = submission("0-1", "ann", key="k")
    for array in (half_over, over, keyed):
        for event in ArraySubmission(array, 1000.0):
            life.record(event)
    for job_id in (*over.task_ids, *keyed.task_ids, half_over.task_ids[0]):
        life.end(life.run(job_id), exit_code=0)
    await write(writer, life)
    later = 2e9
    for keys_before, count in ((0.0, 1), (later, 2)):
        limits = RetentionLimits(later, None, keys_before, None, None, None, None, 9**9)
        found, _ = ledger.read(plan, limits, frozenset())
        assert (found["jobs"].count, found["arrays"].count) == (5, count)
        assert found["specs"].count == count
