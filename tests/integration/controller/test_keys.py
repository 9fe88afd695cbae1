"""Idempotency keys: a request that is sent again makes no second job."""

import asyncio
from contextlib import suppress

import pytest

from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.domain.errors import DiskFullError, InvalidInputError, RefusedError
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits

pytestmark = pytest.mark.anyio


async def test_the_same_request_again_is_the_same_job(instance: Controlled):
    first = await instance.submit(idempotency_key="k")
    assert await instance.submit(idempotency_key="k") == first
    await instance.finish(first)
    await instance.until(first)
    assert await instance.submit(idempotency_key="k") == first
    assert len(instance.ledger.queries.jobs_page(limit=10)) == 1


async def test_another_spec_under_the_same_key_is_refused(instance: Controlled):
    first = await instance.submit(idempotency_key="k")
    with pytest.raises(
        RefusedError,
        match=rf"'k' was used for another spec \(job {first}\). Use a new key",
    ):
        await instance.submit(idempotency_key="k", priority=5)


async def test_two_requests_at_once_are_one_job(instance: Controlled):
    ids = await asyncio.gather(
        *(instance.submit(idempotency_key="k") for _ in range(10))
    )
    assert len(set(ids)) == 1
    assert len(instance.ledger.queries.jobs_page(limit=10)) == 1


async def test_two_different_requests_at_once_are_one_job_and_one_refusal(
    instance: Controlled,
):
    rows = instance.ledger.queries.jobs_page

    async def submit(name: str) -> str:
        try:
            return await instance.submit(idempotency_key="k", name=name)
        except RefusedError as error:
            # Who is refused finds the job that the refusal names.
            (found,) = rows(limit=10)
            assert found["id"] in str(error)
            return "refused"

    answers = await asyncio.gather(submit("a"), submit("b"))
    (row,) = rows(limit=10)
    assert set(answers) == {row["id"], "refused"}


async def test_a_list_repeats_what_is_known_and_adds_what_is_new(instance: Controlled):
    first = await instance.submit(name="a", idempotency_key="a")
    bodies = [
        {"command": ["true"], "name": name, "idempotency_key": name}
        for name in ("a", "b")
    ]
    ids = await instance.controller.requests.submit(bodies)
    assert ids[0] == first
    assert ids == await instance.controller.requests.submit(bodies)


async def test_one_key_twice_in_a_list_is_refused_and_nothing_is_queued(
    instance: Controlled,
):
    with pytest.raises(InvalidInputError, match=r"1\.idempotency_key"):
        await instance.controller.requests.submit(
            [{"command": ["true"], "idempotency_key": "k"}] * 2
        )
    assert instance.ledger.queries.jobs_page(limit=10) == []


async def test_a_key_whose_job_was_never_written_can_be_used_again(
    instance: Controlled,
):
    with failing_commits(instance.ledger.engine):
        answers = await asyncio.gather(
            *(instance.submit(idempotency_key="k") for _ in range(3)),
            return_exceptions=True,
        )
    assert [type(answer) for answer in answers] == [DiskFullError] * 3
    again = None
    while again is None:
        # The host dials in anew, and what it says may still fail; a submission fails
        # with what was written before it.
        with suppress(DiskFullError):
            again = await instance.submit(idempotency_key="k", name="other")
    assert instance.job(again)["name"] == "other"


async def test_the_same_request_from_another_shell_is_the_same_job(
    instance: Controlled,
):
    stored = instance.controller.submissions.environments
    digests = [
        stored.put(CarriedEnvironment({"SHELL_NUMBER": number})) for number in "12"
    ]
    ids = {
        await instance.submit(idempotency_key="k", carried_environment=digest)
        for digest in digests
    }
    assert len(ids) == 1
