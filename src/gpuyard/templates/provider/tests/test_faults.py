"""The faults of the guide's table, one by one. REPLACE: `fail` and `fault`, by how your
fake cloud is made to fail.

A provider lives in one event loop: each test runs one, and `make` gives a new provider
on the same cloud.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import (
    InsufficientResourcesError,
    InvalidInputError,
    ProviderError,
)
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import JobConfig, JobStatus
from gpuyard.domain.jobspec import CheckpointSpec
from gpuyard.providers.base import TRANSIENT

Make = Callable[..., Any]


def job(*command: str) -> JobConfig:
    return JobConfig(
        name="fault", command=command or ("sleep", "60"), attempt_id=new_id("attempt")
    )


def fail(provider: Any, call: str, error: Exception, *, after: bool = False) -> None:
    """From now on this call of the cloud's fails; with `after` it is carried out, and
    only the reply is lost.
    """
    real = getattr(provider.cloud, call)

    def broken(*words: Any) -> None:
        if after:
            real(*words)
        raise error

    setattr(provider.cloud, call, broken)


def fault(provider: Any, word: str) -> Exception:
    """The cloud's own error."""
    return sys.modules[type(provider.cloud).__module__].CloudError(word)


async def code_of(call: Awaitable[Any]) -> str:
    """The code of the ProviderError that comes."""
    with pytest.raises(ProviderError) as caught:
        await call
    return caught.value.error_code


async def until(provider: Any, job_id: str, *wanted: JobStatus) -> Any:
    deadline = time.monotonic() + 60
    while (result := await provider.get_job_status(job_id)).status not in wanted:
        assert time.monotonic() < deadline, (
            f"{job_id} should be {wanted} by now: {result}"
        )
        await asyncio.sleep(0.05)
    return result


async def end(provider: Any, job_id: str) -> None:
    await provider.cancel_job(job_id)
    await until(provider, job_id, JobStatus.CANCELLED)


def test_timeout_on_submit(make: Make) -> None:
    """Nothing arrived: it may be sent again."""

    async def run() -> None:
        provider = make()
        config = job("true")
        fail(provider, "create_machine", TimeoutError())
        assert await code_of(provider.submit_job(config)) == "TIMEOUT"
        assert await make().find_by_attempt(config.attempt_id) is None

    asyncio.run(run())


def test_lost_reply(make: Make) -> None:
    """It arrived and nobody was told: it is found, and sent again it is still one
    machine.
    """

    async def run() -> None:
        provider = make()
        config = job()
        fail(provider, "create_machine", TimeoutError(), after=True)
        assert await code_of(provider.submit_job(config)) in TRANSIENT
        other = make()
        found = await other.find_by_attempt(config.attempt_id)
        assert found is not None
        assert await other.submit_job(config) == found
        assert (await other.health_check())["message"] == "1 machines"
        await end(other, found)

    asyncio.run(run())


def test_duplicate(make: Make) -> None:
    """Two servers, one of which was thought dead, submit the same attempt."""

    async def run() -> None:
        one = make()
        two = make()
        config = job()
        tasks = [
            asyncio.create_task(server.submit_job(config)) for server in (one, two)
        ]
        references = [await task for task in tasks]
        assert references[0] == references[1]
        assert (await one.health_check())["message"] == "1 machines"
        await end(one, references[0])

    asyncio.run(run())


def test_kill_between_intent_and_reply(make: Make) -> None:
    """`kill -9` of the server in the moment when the cloud has done it: the next server
    finds the machine.
    """
    config = job()
    server = os.fork()
    if server == 0:
        try:
            provider = make()
            create = provider.cloud.create_machine

            def create_and_die(*words: Any) -> None:
                create(*words)
                os.kill(os.getpid(), signal.SIGKILL)

            provider.cloud.create_machine = create_and_die
            asyncio.run(provider.submit_job(config))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]) == -signal.SIGKILL

    async def run() -> None:
        provider = make()
        found = await provider.find_by_attempt(config.attempt_id)
        assert found is not None, "the machine is there, and nobody would ever end it"
        await until(provider, found, JobStatus.RUNNING)
        await end(provider, found)

    asyncio.run(run())


def test_node_lost(make: Make, tmp_path: Path) -> None:
    """A failure with its reason and without an exit code, which stays as it is."""

    async def run() -> None:
        provider = make()
        job_id = await provider.submit_job(job("sleep", "10"))
        await until(provider, job_id, JobStatus.RUNNING)
        # REPLACE: pull the plug of a machine.
        os.kill(
            int((tmp_path / "mycloud/cloud/machines" / job_id / "pid").read_text()),
            signal.SIGKILL,
        )
        result = await until(provider, job_id, JobStatus.FAILED)
        assert (result.reason, result.exit_code) == ("node_lost", None)
        assert await make().get_job_status(job_id) == result

    asyncio.run(run())


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("AuthFailure", "NOT_CONNECTED"),
        ("Throttled", "THROTTLED"),
        ("Unavailable", "NOT_CONNECTED"),
    ],
)
def test_credential_expired_throttled_away(make: Make, word: str, code: str) -> None:
    """A cloud that cannot be asked says nothing of jobs, neither "failed" nor "no such
    job": every call raises.
    """

    async def run() -> None:
        provider = make()
        job_id = await provider.submit_job(job("true"))
        await until(provider, job_id, JobStatus.COMPLETED)
        fail(provider, "list_machines", fault(provider, word))
        fail(provider, "create_machine", fault(provider, word))
        for call in (
            provider.poll_jobs([job_id]),
            provider.get_job_status(job_id),
            provider.submit_job(job()),
            provider.find_by_attempt("attempt_1"),
            provider.cancel_job(job_id),
        ):
            assert await code_of(call) == code
        assert code in TRANSIENT
        health = await provider.health_check()
        assert health["status"] == "unhealthy"
        assert ("Renew" in health["message"]) == (word == "AuthFailure")

    asyncio.run(run())


def test_what_waiting_does_not_mend(make: Make) -> None:
    """A permission that is missing ends the attempt; a type that is sold out sends the
    job elsewhere.
    """

    async def run() -> None:
        provider = make()
        fail(provider, "create_machine", fault(provider, "Forbidden"))
        assert await code_of(provider.submit_job(job())) not in TRANSIENT
        fail(provider, "create_machine", fault(provider, "AWordOfItsOwn"))
        assert await code_of(provider.submit_job(job())) == "REFUSED"
        fail(provider, "create_machine", fault(provider, "OutOfStock"))
        with pytest.raises(InsufficientResourcesError):
            await provider.submit_job(job())

    asyncio.run(run())


def test_taken_back_it_saves_first(make: Make) -> None:
    """gpuyard wants its place for another job: the signal to save comes before TERM,
    and the end says why.
    """
    program = "trap 'echo saved; exit 0' USR1; echo here; while :; do sleep 0.05; done"

    async def run() -> None:
        provider = make()
        config = job("sh", "-c", program).model_copy(
            update={"checkpoint": CheckpointSpec(signal="USR1", grace_s=30)}
        )
        job_id = await provider.submit_job(config)
        stream = provider.stream_logs(job_id, lines=None, follow=True)
        assert await anext(stream) == b"here\n"
        assert await provider.stop_job(job_id, checkpoint=True)
        assert (await until(provider, job_id, JobStatus.FAILED)).reason == "preempted"
        assert "saved" in await provider.get_job_logs(job_id)
        assert not await provider.stop_job(job_id, checkpoint=True)

    asyncio.run(run())


def test_offers_are_named_after_the_provider(make: Make) -> None:
    async def run() -> None:
        provider = make()
        offers = await provider.offers()
        assert offers == await make().offers()
        for offer in offers:
            assert offer.id.startswith(f"{provider.PROVIDER_NAME}/")
            assert offer.provider == provider.PROVIDER_NAME
            assert not offer.gpus or offer.classes, (
                f"{offer.gpu} is no row of the catalogue"
            )

    asyncio.run(run())


def test_a_slow_cloud_is_given_up(make: Make) -> None:
    async def run() -> None:
        provider = make(timeout_s=0.05)

        def dawdle(_: str) -> None:
            time.sleep(0.5)

        provider.cloud.list_machines = dawdle
        assert await code_of(provider.poll_jobs(["any"])) == "TIMEOUT"

    asyncio.run(run())


def test_a_setting_that_is_wrong_is_named(make: Make) -> None:
    with pytest.raises(InvalidInputError, match="regoin: is not a field"):
        make(regoin="east")


def test_what_is_forgotten_leaves_nothing(make: Make, tmp_path: Path) -> None:
    """Again does no harm, and nothing is left that would be paid for."""

    async def run() -> None:
        provider = make()
        job_id = await provider.submit_job(job("true"))
        await until(provider, job_id, JobStatus.COMPLETED)
        await provider.forget_job(job_id)
        await provider.forget_job(job_id)
        assert await provider.poll_jobs([job_id]) == {}

    asyncio.run(run())
    assert list((tmp_path / "mycloud").rglob("*attempt*")) == []
