"""Request queues: whose turn it is, and that no slot is lost or given out twice."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.gateway.request_queue import (
    ModelUnavailableError,
    QueuedRequestTerms,
    Replica,
    RequestQueues,
)
from tests.support.wait import eventually


def replica(name: str = "r1", model: str = "a", slots: int = 1) -> Replica:
    return Replica(name, model, "http://127.0.0.1:1", model, slots)


def soon(seconds: float = 10, **terms: Any) -> QueuedRequestTerms:
    """Terms of a request that gives up after so many seconds."""
    return QueuedRequestTerms(deadline=time.monotonic() + seconds, **terms)


@pytest.fixture
def queues() -> RequestQueues:
    return RequestQueues(["a", "b"])


pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_first_is_served_first_and_each_slot_once(queues):
    asking = [asyncio.create_task(queues.acquire("a", soon())) for _ in range(3)]
    await settle()
    one = replica(slots=2)
    queues.put(one)
    await settle()
    assert [task.done() for task in asking] == [True, True, False]
    queues.release(one, 1.5)
    await settle()
    assert asking[2].done()
    assert (one.busy, one.answered, queues.by_model["a"].answering_s) == (2, 1, 1.5)


async def test_each_of_those_that_came_together_has_a_place_of_its_own(queues):
    since = time.monotonic()
    usual = [QueuedRequestTerms(priority=3, since=since) for _ in range(3)]
    urgent = QueuedRequestTerms(priority=5, since=since)
    all_terms = [*usual, urgent]
    asking = [asyncio.create_task(queues.acquire("a", terms)) for terms in all_terms]
    await settle()
    waiting = queues.by_model["a"].waiting
    assert [waiting.ahead_of(terms) for terms in all_terms] == [1, 2, 3, 0]
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def in_order(queues: RequestQueues, *all_terms: QueuedRequestTerms) -> list[int]:
    """In which order these are served, one at a time."""
    served: list[int] = []

    async def ask(number: int, terms: QueuedRequestTerms) -> None:
        got = await queues.acquire("a", terms)
        served.append(number)
        await asyncio.sleep(0)
        queues.release(got, 0.1)

    asking = [asyncio.create_task(ask(n, terms)) for n, terms in enumerate(all_terms)]
    await settle()
    queues.put(replica())
    await asyncio.gather(*asking)
    return served


async def test_the_urgent_come_first_and_then_who_came_first(queues):
    now = time.monotonic()
    all_terms = [
        QueuedRequestTerms(3, now),
        QueuedRequestTerms(5, now + 2),
        QueuedRequestTerms(3, now - 1),
        QueuedRequestTerms(5, now + 1),
    ]
    assert await in_order(queues, *all_terms) == [3, 1, 2, 0]


async def test_who_has_waited_long_comes_before_the_most_urgent():
    queues = RequestQueues(["a"], ageing_s=60)
    now = time.monotonic()
    all_terms = [
        QueuedRequestTerms(5, now),
        QueuedRequestTerms(1, now - 250),
        QueuedRequestTerms(1, now - 310),
        QueuedRequestTerms(5, now - 5),
    ]
    # The third has aged to the top; the second has reached 5, and came before the
    # others of 5.
    assert await in_order(queues, *all_terms) == [2, 1, 3, 0]


async def test_a_prompt_without_a_deadline_waits_on_when_its_model_fails(queues):
    patient = asyncio.create_task(queues.acquire("a", QueuedRequestTerms()))
    await settle()
    queues.refuse("a", "its server crashes")
    await settle()
    assert not patient.done()
    one = replica()
    queues.put(one)
    assert await patient is one


async def test_those_that_give_up_leave_nothing_behind_one_that_waits_on(queues):
    patient = asyncio.create_task(queues.acquire("a", QueuedRequestTerms(3)))
    await settle()
    for _ in range(1000):
        with pytest.raises(ModelUnavailableError):
            await queues.acquire("a", QueuedRequestTerms(3, deadline=0.0))
    waiting = queues.by_model["a"].waiting
    assert sum(map(len, waiting._heaps.values())) < 200
    patient.cancel()


async def test_a_request_that_waits_too_long_is_told_and_leaves_the_queue(queues):
    with pytest.raises(ModelUnavailableError, match="a was not free within"):
        await queues.acquire("a", soon(0.0))
    assert not queues.by_model["a"].waiting


async def test_a_client_that_leaves_as_its_turn_comes_gives_the_slot_back(queues):
    asking = asyncio.create_task(queues.acquire("a", soon()))
    await settle()
    one = replica()
    queues.put(one)
    assert one.busy == 1
    asking.cancel()
    await settle()
    assert asking.cancelled()
    assert one.busy == 0


async def test_all_who_wait_hear_why_a_model_cannot_be(queues):
    asking = [asyncio.create_task(queues.acquire("a", soon())) for _ in range(2)]
    await settle()
    queues.refuse("a", "its server crashes")
    for task in asking:
        with pytest.raises(ModelUnavailableError, match="its server crashes"):
            await task


async def test_a_replica_that_drains_gets_nothing_more(queues):
    one = replica("r1")
    two = replica("r2")
    queues.put(one)
    queues.put(two)
    one.draining = True
    assert await queues.acquire("a", soon()) is two
    queues.drop(two)
    with pytest.raises(ModelUnavailableError):
        await queues.acquire("a", soon(0.0))


async def test_somebody_hears_of_every_change_that_calls_for_a_decision():
    heard: list[int] = []
    queues = RequestQueues(["a"], lambda: heard.append(1))
    asking = asyncio.create_task(queues.acquire("a", soon()))
    await settle()
    assert len(heard) == 1  # somebody waits
    one = replica()
    queues.put(one)
    await asking
    queues.release(one, 0.1)
    assert len(heard) == 2  # a replica has nothing to do


@given(st.lists(st.sampled_from(["ask", "leave", "end", "drop", "put"]), max_size=60))
def test_no_slot_is_lost_or_given_out_twice(steps):
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    queues = RequestQueues(["a"])
    number = 0
    there: list[Replica] = []
    asking: list[asyncio.Task[Replica]] = []
    held: list[Replica] = []

    def collect() -> None:
        for task in [task for task in asking if task.done()]:
            asking.remove(task)
            if not task.cancelled():
                held.append(task.result())

    acts: dict[str, Callable[[], None]] = {
        "ask": lambda: asking.append(
            asyncio.create_task(queues.acquire("a", soon(60)))
        ),
        "leave": lambda: asking.pop(0).cancel() and None if asking else None,
        "end": lambda: queues.release(held.pop(0), 0.1) if held else None,
        "drop": lambda: queues.drop(there.pop(0)) if there else None,
    }
    for step in steps:
        if step == "put":
            number += 1
            there.append(replica(f"r{number}", slots=1 + number % 3))
            queues.put(there[-1])
        else:
            acts[step]()
        await settle()
        collect()
        for one in there:
            assert one.busy == held.count(one) <= one.slots
        if asking:
            assert not any(one.free for one in there)
    for task in asking:
        task.cancel()
    await settle()


async def test_a_replica_that_could_not_be_reached_gets_nothing_until_it_is_well(
    queues,
):
    one = replica()
    queues.put(one)
    assert await queues.acquire("a", soon()) is one
    one.suspended = True
    queues.release(one, None)
    with pytest.raises(ModelUnavailableError):
        await queues.acquire("a", soon(0.0))
    queues.put(one)
    assert await queues.acquire("a", soon()) is one


async def test_a_request_waits_for_the_replica_on_its_gpu(queues):
    here = Replica("r1", "a", "http://127.0.0.1:1", "a", gpus=("g1",))
    there = Replica("r2", "a", "http://127.0.0.1:2", "a", gpus=("g2",))
    queues.put(here)
    first = await queues.acquire("a", soon())
    assert first is here
    queues.put(there)
    wants = asyncio.create_task(queues.acquire("a", soon(gpus=frozenset({"g1"}))))
    await settle()
    assert not wants.done()
    # Others behind it do not wait.
    assert await queues.acquire("a", soon()) is there
    queues.release(there, 0.1)
    await settle()
    assert not wants.done()
    queues.release(here, 0.1)
    assert await wants is here


async def test_a_request_whose_gpu_has_no_replica_any_more_goes_elsewhere(queues):
    here = Replica("r1", "a", "http://127.0.0.1:1", "a", gpus=("g1",))
    there = Replica("r2", "a", "http://127.0.0.1:2", "a", gpus=("g2",))
    queues.put(here)
    await queues.acquire("a", soon())
    queues.put(there)
    wants = asyncio.create_task(queues.acquire("a", soon(gpus=frozenset({"g1"}))))
    await settle()
    queues.drop(here)
    assert await wants is there


async def test_requests_for_other_gpus_leave_nothing_behind(queues):
    one = replica()
    queues.put(one)
    for number in range(100):
        gpus = frozenset({f"g{number}"})
        assert await queues.acquire("a", soon(gpus=gpus)) is one
        queues.release(one, 0.1)
    assert len(queues.by_model["a"].waiting._heaps) <= 1


async def test_a_slot_pauses_after_each_answer():
    queues = RequestQueues(["a"], cooling_s=0.05)
    one = replica()
    queues.put(one)
    assert await queues.acquire("a", soon()) is one
    changed: list[int] = []
    queues.changed = lambda: changed.append(one.taken)
    queues.release(one, 0.1)
    again = asyncio.create_task(queues.acquire("a", soon()))
    await settle()
    assert (one.busy, one.cooling, again.done()) == (0, 1, False)
    assert await again is one
    queues.release(one, 0.1)
    await eventually(lambda: changed[-1:] == [0], "the end of the pause")
