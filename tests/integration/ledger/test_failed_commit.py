"""A commit that fails: who hears of it, in which order, and that nothing of it is
left.
"""

import asyncio
import math
from contextlib import ExitStack

import pytest

from gpuyard.domain.errors import DiskFullError, LedgerError
from gpuyard.domain.events import Event
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from tests.support.ledger import (
    failing_commits,
    held_commit,
    node_event,
    refuse_node,
    state_of,
)
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


async def test_a_failed_commit_leaves_nothing_and_the_next_one_works(
    ledger: Ledger, writer: Writer
):
    with failing_commits(ledger.engine):
        writer.add_events([node_event(1)])
        with pytest.raises(
            DiskFullError,
            match=r"the disk is full\. Nothing that was acknowledged is lost",
        ):
            await writer.committed()
    assert ledger.queries.last_seq() == 0
    assert not any(state_of(ledger.engine).values())
    writer.add_events([node_event(2)])
    await writer.committed()
    assert [node["name"] for node in ledger.queries.nodes()] == ["n2"]
    assert ledger.queries.last_seq() == 1


async def test_a_statement_that_fails_takes_the_whole_group_with_it(
    ledger: Ledger, writer: Writer
):
    refuse_node(ledger.engine, "node-00002")
    writer.add_events([node_event(1), node_event(2), node_event(3)])
    with pytest.raises(LedgerError, match="not this one"):
        await writer.committed()
    assert ledger.queries.nodes() == []
    assert ledger.queries.last_seq() == 0


async def test_what_was_written_believing_in_it_fails_too(ledger: Ledger):
    heard: list[str] = []
    writer = ledger.writer(
        lambda _first, _events: heard.append("commit"), lambda: heard.append("failure")
    )
    writer.start()
    with ExitStack() as held:
        begun = held.enter_context(held_commit(ledger.engine))
        with failing_commits(ledger.engine):
            writer.add_events([node_event(1)])
            first = writer.committed()
            await eventually(begun.is_set, "the commit to begin")
            writer.add_events([node_event(2)])
            second = writer.committed()
            for waiter in (first, second):
                waiter.add_done_callback(lambda _: heard.append("waiter"))
            held.close()
            answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DiskFullError, DiskFullError]
    assert heard == ["failure", "waiter", "waiter"]
    await writer.close()
    assert ledger.queries.last_seq() == 0


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(
            lambda writer: writer.add_events([node_event(1, reason="\ud800")]),
            id="text that is not Unicode",
        ),
        pytest.param(
            lambda writer: writer.add_events([node_event(1, cpus=object())]),
            id="no value of a database",
        ),
        pytest.param(
            lambda writer: writer.add_points([_point(step=2**70)]),
            id="a number too large",
        ),
        pytest.param(
            lambda writer: writer.add_points([_point(value=math.nan)]),
            id="a loss that is not a number",
        ),
    ],
)
async def test_a_value_that_cannot_be_stored_does_not_end_the_writer(
    ledger: Ledger, writer: Writer, put
):
    put(writer)
    with pytest.raises(LedgerError):
        await writer.committed()
    writer.add_events([node_event(2)])
    await writer.committed()
    assert [node["name"] for node in ledger.queries.nodes()] == ["n2"]


def _point(**values) -> dict:
    return {
        "attempt_id": "a",
        "job_id": "j",
        "name": "loss",
        "n": 0,
        "step": 1,
        "value": 1.0,
        "at": 1.0,
        **values,
    }


async def test_a_writer_that_cannot_write_its_last_still_closes(ledger: Ledger):
    writer = ledger.writer()
    writer.start()
    with failing_commits(ledger.engine):
        writer.add_events([node_event(1)])
        with pytest.raises(DiskFullError):
            await writer.close()
    assert not [
        task for task in asyncio.all_tasks() if task.get_name() == "ledger-writer"
    ]


async def test_a_failure_is_announced_even_when_nobody_waits(ledger: Ledger):
    failures: list[Event | None] = []
    writer = ledger.writer(on_failure=lambda: failures.append(None))
    writer.start()
    with failing_commits(ledger.engine):
        writer.add_events([node_event(1)], can_wait=True)
        await eventually(lambda: failures, what="the failure to be announced")
    await writer.close()
