"""The one writer: order, group commit, and what is written when."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

import gpuyard.ledger.writer as writing
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from tests.support.blank_ledger import blank_ledger
from tests.support.ledger import held_commit, node_event, state_of
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def test_what_is_written_together_costs_one_commit(
    ledger: Ledger, writer: Writer
):
    waiting = []
    for number in range(500):
        writer.add_events([node_event(number)])
        waiting.append(writer.committed())
    await asyncio.gather(*waiting)
    assert writer.commits <= 2
    assert [
        row["info"]["number"] for row in ledger.queries.events_after(0, 1000)
    ] == list(range(500))


async def test_what_comes_during_a_commit_shares_the_next_one(
    ledger: Ledger, writer: Writer
):
    with held_commit(ledger.engine) as begun:
        writer.add_events([node_event(0)])
        first = writer.committed()
        await eventually(begun.is_set, "the first commit to begin")
        for number in range(1, 200):
            writer.add_events([node_event(number)])
        second = writer.committed()
        assert not first.done()
    await asyncio.gather(first, second)
    assert writer.commits == 2
    assert ledger.queries.last_seq() == 200


async def test_written_means_another_connection_sees_it(
    writer: Writer, place: Path | str
):
    writer.add_events([node_event(1)])
    await writer.committed()
    other = Ledger.open(place)
    assert [node["id"] for node in other.queries.nodes()] == ["node-00001"]
    other.close()


async def test_what_nobody_waits_for_is_written_all_the_same(
    ledger: Ledger, writer: Writer
):
    writer.add_events([node_event(1)], can_wait=True)
    await eventually(
        lambda: ledger.queries.last_seq() == 1, what="the event to be written"
    )


async def test_who_waits_is_not_kept_by_what_can_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writing, "BATCHING_DELAY_S", 60.0)
    ledger = Ledger.open(blank_ledger(path))
    writer = ledger.writer()
    writer.start()
    writer.add_events([node_event(1)], can_wait=True)
    await asyncio.sleep(0)  # it has begun to wait for more
    writer.add_events([node_event(2)])
    async with asyncio.timeout(30):
        await writer.committed()
    assert (writer.commits, ledger.queries.last_seq()) == (1, 2)
    await writer.close()
    ledger.close()


async def test_closing_writes_what_is_waiting(ledger: Ledger):
    writer = ledger.writer()
    writer.start()
    writer.add_events([node_event(1)], can_wait=True)
    await writer.close()
    assert ledger.queries.last_seq() == 1


async def test_each_committed_group_is_announced_once_with_its_numbers(ledger: Ledger):
    heard: list[tuple[int, list[Event]]] = []
    writer = ledger.writer(lambda first, events: heard.append((first, list(events))))
    writer.start()
    for number in range(3):
        writer.add_events([node_event(number), node_event(number + 10)])
        await writer.committed()
    writer.set_progress("job_1", {"step": 1})
    await writer.committed()
    await writer.close()
    assert [first for first, _ in heard] == [1, 3, 5]
    assert [event.info["number"] for _, events in heard for event in events] == [
        0,
        10,
        1,
        11,
        2,
        12,
    ]


async def test_an_event_changes_the_columns_it_names_and_no_others(
    ledger: Ledger, writer: Writer
):
    writer.add_events([node_event(1, cpus=8.0, limits={"memory": "cgroup"})])
    writer.add_events(
        [
            Event(
                EventKind.NODE_CHANGED,
                2.0,
                (Change(Table.NODES, "node-00001", {"state": "silent"}),),
            )
        ]
    )
    await writer.committed()
    (node,) = ledger.queries.nodes()
    assert (node["name"], node["cpus"], node["limits"], node["state"]) == (
        "n1",
        8.0,
        {"memory": "cgroup"},
        "silent",
    )


async def test_a_row_may_begin_with_any_of_its_columns(ledger: Ledger, writer: Writer):
    changes = (
        Change(Table.JOBS, "job_1", {"state": "queued"}),
        Change(Table.SPECS, "job_1", {}),
    )
    writer.add_events([Event(EventKind.JOB_SUBMITTED, 1.0, changes, "job_1")])
    await writer.committed()
    state = state_of(ledger.engine)
    assert state[Table.JOBS]["job_1"]["state"] == "queued"
    assert state[Table.SPECS]["job_1"]["body"] is None


async def test_of_two_changes_in_one_group_the_later_wins(
    ledger: Ledger, writer: Writer
):
    writer.add_events(
        [
            node_event(1, state="online"),
            node_event(1, state="silent"),
            node_event(2),
            node_event(1, reason="why"),
        ]
    )
    await writer.committed()
    node = state_of(ledger.engine)[Table.NODES]["node-00001"]
    assert (node["state"], node["reason"]) == ("silent", "why")


async def test_a_point_that_comes_twice_is_kept_once(ledger: Ledger, writer: Writer):
    point = {
        "attempt_id": "a",
        "job_id": "j",
        "name": "loss",
        "n": 0,
        "step": 1,
        "value": 4.5,
        "at": 1.0,
    }
    writer.add_points([point, {**point, "n": 1, "step": 2}])
    await writer.committed()
    writer.add_points([{**point, "value": 99.0}, {**point, "n": 2, "step": 3}])
    await writer.committed()
    series = ledger.queries.series("j")["loss"]
    assert [(row["step"], row["value"]) for row in series] == [
        (1, 4.5),
        (2, 4.5),
        (3, 4.5),
    ]


async def test_the_latest_note_stands(ledger: Ledger, writer: Writer):
    assert ledger.queries.note("webhooks") == {}
    for seq in range(3):
        writer.set_note("webhooks", {"one": seq})
    writer.set_note("another", {"two": 2})
    await writer.committed()
    writer.set_note("webhooks", {"one": 9})
    await writer.committed()
    assert (ledger.queries.note("webhooks"), ledger.queries.note("another")) == (
        {"one": 9},
        {"two": 2},
    )


async def test_the_latest_progress_stands(ledger: Ledger, writer: Writer):
    for step in range(3):
        writer.set_progress("job_1", {"step": step})
    await writer.committed()
    writer.set_progress("job_1", {"step": 9, "metrics": {"loss": 1.0}})
    await writer.committed()
    assert ledger.queries.progress_of(["job_1", "job_2"]) == {
        "job_1": {"step": 9, "metrics": {"loss": 1.0}}
    }


async def test_upkeep_waits_for_the_group_and_the_next_group_for_the_upkeep(
    ledger: Ledger, writer: Writer
):
    go_on = threading.Event()
    order = []

    def work(tx: sa.Connection) -> None:
        assert go_on.wait(60)
        order.append("upkeep")

    upkeep = asyncio.create_task(writer.maintain(work))
    await asyncio.sleep(0)
    writer.add_events([node_event(1)])
    written = writer.committed()
    written.add_done_callback(lambda _: order.append("group"))
    go_on.set()
    await asyncio.gather(upkeep, written)
    assert order == ["upkeep", "group"]


async def test_epochs_count_the_servers(ledger: Ledger, place: Path | str):
    assert [ledger.queries.next_epoch() for _ in range(2)] == [1, 2]
    again = Ledger.open(place)
    assert again.queries.next_epoch() == 3
    again.close()


async def test_a_commit_waits_for_no_thread_of_others(writer: Writer):
    """All threads of the event loop's pool are taken, as by many slow reads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    let_go = threading.Event()
    taken = asyncio.create_task(asyncio.to_thread(let_go.wait, 10))
    writer.quick_s = 0  # each commit takes a thread
    try:
        writer.add_events([node_event(1)])
        await asyncio.wait_for(writer.committed(), 60)
        assert not taken.done()
    finally:
        let_go.set()
        await taken
