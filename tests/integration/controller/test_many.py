"""Many jobs in one request: worked through in slices, and all or none all the same."""

import asyncio

import pytest

from gpuyard.controller.core import FOLDED_AT_ONCE, SLICE
from gpuyard.domain.errors import LedgerError, RefusedError
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits

pytestmark = pytest.mark.anyio
MANY = 3 * FOLDED_AT_ONCE + 7


def bodies(count: int = MANY, **fields):
    return [
        {"command": ["true", str(n)], "name": f"n{n}", **fields} for n in range(count)
    ]


def keyed(count: int = MANY):
    return [{**body, "idempotency_key": body["name"]} for body in bodies(count)]


async def half_way(instance: Controlled) -> None:
    """Wait until some jobs of a request are in memory and others are not."""
    async with asyncio.timeout(30):
        while not 0 < len(instance.core.view.jobs) < MANY:  # noqa: ASYNC110  (each turn of the loop counts)
            await asyncio.sleep(0)


async def test_many_jobs_are_one_commit_between_whose_slices_others_have_their_turn(
    instance: Controlled,
):
    groups: list[int] = []
    instance.core.listeners.append(
        lambda _, events: groups.append(sum(e.kind == "job.submitted" for e in events))
    )
    request = asyncio.create_task(instance.controller.requests.submit(bodies()))
    await half_way(instance)
    ids = await request
    assert ids == sorted(ids)
    assert [count for count in groups if count] == [MANY]
    rows = instance.ledger.queries.jobs_by_id(ids)
    assert [rows[job_id]["name"] for job_id in ids] == [f"n{n}" for n in range(MANY)]
    spec = instance.ledger.queries.specs([ids[-1]])[ids[-1]]
    assert spec == {"name": f"n{MANY - 1}", "command": ["true", str(MANY - 1)]}
    for job_id in ids:
        await instance.cancel(job_id)


async def test_no_turn_is_long_while_all_are_read(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    """Jobs that all differ take longest to read: few of them at a time."""
    read: list[int] = [0]
    intake = instance.controller.requests._admission._intake
    read_one = intake.read

    def counted(*arguments):
        read[-1] += 1
        return read_one(*arguments)

    monkeypatch.setattr(intake, "read", counted)
    different = [{**body, "timeout_s": 60 + n} for n, body in enumerate(bodies())]
    request = asyncio.create_task(instance.controller.requests.submit(different))
    while not request.done():
        read.append(0)
        await asyncio.sleep(0)
    assert sum(read) == MANY
    assert max(read) <= SLICE <= 25
    await instance.controller.requests.cancel_many(await request)


async def test_jobs_that_differ_in_a_number_are_one_question_to_the_provider(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, ...]] = []
    provider = instance.provider

    async def check(program, workdir, path):
        asked.append(program)

    monkeypatch.setattr(provider, "check", check)
    files = [{"command": ["python3", f"{name}.py"]} for name in "ab"]
    ids = await instance.controller.requests.submit([*bodies(), *files])
    assert asked == [("true",), ("python3", "a.py"), ("python3", "b.py")]
    await instance.controller.requests.cancel_many(ids)


async def test_a_request_that_is_broken_off_half_way_is_carried_out_all_the_same(
    instance: Controlled,
):
    request = asyncio.create_task(instance.controller.requests.submit(keyed()))
    await half_way(instance)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    ids = await instance.controller.requests.submit(keyed())
    await instance.settled()
    assert sum(instance.ledger.queries.job_counts().values()) == MANY
    assert set(ids) == set(instance.core.view.jobs)
    for job_id in ids:
        await instance.cancel(job_id)


async def test_a_failed_commit_of_many_leaves_nothing(instance: Controlled):
    with failing_commits(instance.ledger.engine), pytest.raises(LedgerError):
        await instance.controller.requests.submit(keyed())
    assert not instance.core.view.jobs
    again = keyed(FOLDED_AT_ONCE + 1)
    assert len(await instance.controller.requests.submit(again)) == len(again)


async def test_the_same_request_twice_at_once_is_the_same_jobs(instance: Controlled):
    first, second = await asyncio.gather(
        *(instance.controller.requests.submit(keyed()) for _ in range(2))
    )
    assert first == second
    assert (
        len(instance.ledger.queries.jobs_by_id(first))
        == MANY
        == sum(instance.ledger.queries.job_counts().values())
    )


async def test_a_key_that_a_half_queued_request_holds_is_taken(instance: Controlled):
    request = asyncio.create_task(instance.controller.requests.submit(keyed()))
    await half_way(instance)
    same = await instance.controller.requests.submit([keyed()[-1]])
    with pytest.raises(RefusedError):
        await instance.submit(name="another", idempotency_key=f"n{MANY - 1}")
    assert same == (await request)[-1:]


async def test_a_key_of_another_spec_refuses_all(instance: Controlled):
    first = await instance.submit(name="a", idempotency_key=f"n{MANY - 1}")
    with pytest.raises(RefusedError, match=f"used for another spec \\(job {first}\\)"):
        await instance.controller.requests.submit(keyed())
    assert list(instance.core.view.jobs) == [first]


async def test_many_jobs_whose_parent_has_ended_all_start(instance: Controlled):
    """Decisions are made while they are taken in, and forget what has ended."""
    parent = await instance.submit(name="parent")
    await instance.finish(parent)
    await instance.until(parent)
    request = asyncio.create_task(
        instance.controller.requests.submit(bodies(depends_on=["parent"]))
    )
    while not request.done():
        instance.core.schedule()
        await asyncio.sleep(0)
    assert not instance.core.view.dependents
    await instance.controller.requests.cancel_many(await request)
