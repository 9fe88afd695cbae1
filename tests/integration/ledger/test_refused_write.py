"""One put that no database takes: it is refused by itself, whoever else shares its
commit.
"""

import asyncio

import pytest

from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from tests.support.ledger import node_event, refuse_node, state_of

pytestmark = pytest.mark.anyio
BAD = 7


async def put_and_wait(writer: Writer, *numbers: int) -> None:
    """As a request does: what it put itself is what it answers for."""
    for number in numbers:
        writer.add_events([node_event(number)])
    await writer.committed(own_only=True)


def names(ledger: Ledger) -> list[str]:
    return [node["name"] for node in ledger.queries.nodes()]


async def test_only_its_own_writer_hears_of_it(ledger: Ledger):
    heard: list[object] = []
    writer = ledger.writer(
        lambda first, events: heard.append((first, [e.info["number"] for e in events])),
        lambda: heard.append("failure"),
    )
    writer.start()
    refuse_node(ledger.engine, f"node-{BAD:05d}")
    answers = await asyncio.gather(
        *(put_and_wait(writer, n) for n in (5, 6, BAD, 8)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [
        type(None),
        type(None),
        LedgerError,
        type(None),
    ]
    assert str(answers[2]).startswith("node.changed of node-00007 was not written: ")
    assert "not this one" in str(answers[2])
    # Memory believed in it, and is read anew; what is in the journal is told, numbered
    # without a gap.
    assert heard == [(1, [5, 6, 8]), "failure"]
    assert names(ledger) == ["n5", "n6", "n8"]
    assert [row["seq"] for row in ledger.queries.events_after(0, 10)] == [1, 2, 3]
    await put_and_wait(writer, 9)
    assert heard[-1] == (4, [9])
    await writer.close()


async def test_one_who_waits_for_everything_hears_of_it_too(
    ledger: Ledger, writer: Writer
):
    refuse_node(ledger.engine, f"node-{BAD:05d}")
    writer.add_events([node_event(1)])
    before = writer.committed()
    writer.add_events([node_event(BAD)])
    after = writer.committed()
    answers = await asyncio.gather(before, after, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), LedgerError]


async def test_what_was_built_on_it_is_refused_with_it(ledger: Ledger, writer: Writer):
    def job(job_id: str, **values) -> Event:
        return Event(
            EventKind.JOB_SUBMITTED, 1.0, (Change(Table.JOBS, job_id, values),), job_id
        )

    writer.add_events([job("job_1", state="queued", cpu="no such column")])
    writer.add_events([job("job_2", state="queued")])
    writer.add_events([job("job_1", state="assigned")])
    writer.add_events([job("job_2", state="assigned")])
    with pytest.raises(LedgerError, match="jobs has no column cpu"):
        await writer.committed()
    jobs = state_of(ledger.engine)[Table.JOBS]
    assert {job_id: row["state"] for job_id, row in jobs.items()} == {
        "job_2": "assigned"
    }


async def test_points_that_cannot_be_kept_cost_nobody_else_anything(
    ledger: Ledger, writer: Writer
):
    point = {
        "attempt_id": "a",
        "job_id": "j",
        "name": "loss",
        "n": 0,
        "step": 1,
        "value": 4.5,
        "at": 1.0,
    }
    writer.add_points([point])
    writer.add_points([{**point, "n": 1, "value": float("nan")}])
    writer.set_progress("j", {"step": 1})
    writer.add_events([node_event(1)])
    with pytest.raises(
        LedgerError, match=r"a point of job j was not written: .*loss is nan"
    ):
        await writer.committed()
    assert [row["value"] for row in ledger.queries.series("j")["loss"]] == [4.5]
    assert ledger.queries.progress_of(["j"]) == {"j": {"step": 1}}
    assert names(ledger) == ["n1"]


async def test_a_character_that_postgresql_has_not_is_replaced_there(
    ledger: Ledger, writer: Writer
):
    await_this = node_event(1, reason="a\0b", limits={"a\0b": "c\0d"})
    writer.add_events([await_this])
    await writer.committed()
    (node,) = ledger.queries.nodes()
    assert node["reason"] in ("a\0b", "a\ufffdb")
    assert node["limits"] == {"a\0b": "c\0d"}
    (row,) = ledger.queries.events_after(0, 10)
    assert row["changes"][0][2]["reason"] == "a\0b"
