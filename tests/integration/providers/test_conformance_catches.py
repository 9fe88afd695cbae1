"""The conformance suite can fail: each of these providers breaks one promise, and the
suite says which.
"""

import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import GpuSpec, JobResult, JobStatus
from gpuyard.providers.base import GpuProviderInterface, log_text
from gpuyard.providers.conformance import CASES, Subject
from gpuyard.providers.local import LocalProvider
from tests.support.node import Node, make_node


class NewReferences(LocalProvider):
    async def submit_job(self, job_config):
        return await super().submit_job(
            job_config.model_copy(update={"attempt_id": new_id("attempt")})
        )


class ShellQuoting(LocalProvider):
    async def submit_job(self, job_config):
        command = (
            tuple(word.replace("\n", " ") for word in job_config.command[:-1])
            + job_config.command[-1:]
        )
        return await super().submit_job(
            job_config.model_copy(update={"command": command})
        )


class NoTimeout(LocalProvider):
    async def submit_job(self, job_config):
        return await super().submit_job(
            job_config.model_copy(update={"timeout_minutes": None})
        )


class TakesAnything(LocalProvider):
    async def submit_job(self, job_config):
        return await super().submit_job(
            job_config.model_copy(update={"gpu_spec": GpuSpec(gpu_count=0)})
        )


class LeavesVolumesOut(LocalProvider):
    async def submit_job(self, job_config):
        return await super().submit_job(job_config.model_copy(update={"volumes": {}}))


class RunsOnce(LocalProvider):
    async def submit_job(self, job_config):
        return await super().submit_job(
            job_config.model_copy(update={"retry_count": 0})
        )


class NoLogInTheStatus(LocalProvider):
    async def get_job_status(self, job_id):
        return replace(await super().get_job_status(job_id), logs=None)


class HidesExitCodes(LocalProvider):
    async def get_job_status(self, job_id):
        result = await super().get_job_status(job_id)
        return replace(result, exit_code=1 if result.exit_code else result.exit_code)


class InventsJobs(LocalProvider):
    async def get_job_status(self, job_id):
        try:
            return await super().get_job_status(job_id)
        except JobNotFoundError:
            return JobResult(job_id, JobStatus.UNKNOWN)


class NamelessErrors(LocalProvider):
    async def get_cost_info(self, job_id):
        try:
            return await super().get_cost_info(job_id)
        except JobNotFoundError:
            raise ProviderError(f"no job {job_id}") from None


class DeafToCancel(LocalProvider):
    async def cancel_job(self, job_id):
        return job_id in self._results._live

    async def close(self):
        for job_id in list(self._results._live):
            await super().cancel_job(job_id)
        await super().close()


class AlwaysCancels(LocalProvider):
    async def cancel_job(self, job_id):
        await super().cancel_job(job_id)
        return True


class IgnoresLines(LocalProvider):
    async def get_job_logs(self, job_id, lines=None):
        return await super().get_job_logs(job_id)


class CutsLogs(LocalProvider):
    async def get_job_logs(self, job_id, lines=None):
        return (await super().get_job_logs(job_id, lines))[-1_000_000:]


class StreamsAtTheEnd(LocalProvider):
    async def stream_logs(self, job_id, *, lines, follow):
        for part in [
            part
            async for part in super().stream_logs(job_id, lines=lines, follow=follow)
        ]:
            yield part


class ForgetsAttempts(LocalProvider):
    async def find_by_attempt(self, attempt_id):
        return None


class FlatRate(LocalProvider):
    async def get_cost_info(self, job_id):
        cost = await super().get_cost_info(job_id)
        return replace(cost, total_cost=float(cost.total_cost))


class Sick(LocalProvider):
    async def health_check(self):
        return {"status": "unhealthy"}


# Their faults are seen by waiting in vain.
_LATE = (DeafToCancel, NoTimeout, StreamsAtTheEnd)
BROKEN = [
    (NewReferences, "same_attempt_once", "one attempt, one reference"),
    (NewReferences, "lost_reply", "was submitted as"),
    (ShellQuoting, "arguments", "changed on the way"),
    (NoTimeout, "timeout", "the error should say that it timed out|within"),
    (TakesAnything, "too_much", "should be refused"),
    (LeavesVolumesOut, "volumes", "should complete"),
    (RunsOnce, "retry_count", "should have run twice"),
    (NoLogInTheStatus, "log", "the status should have the log"),
    (HidesExitCodes, "exit_codes", "left with 7"),
    (InventsJobs, "unknown_id", "get_job_status should raise JobNotFoundError"),
    (DeafToCancel, "cancel_while_running", "within"),
    (AlwaysCancels, "cancel_after_the_end", "should be False"),
    (IgnoresLines, "last_lines", "the last 0 lines"),
    (CutsLogs, "big_log", "the log has"),
    (StreamsAtTheEnd, "follow", "nothing came"),
    (ForgetsAttempts, "lost_reply", "was submitted as"),
    (FlatRate, "cost", "money is Decimal"),
    (Sick, "health", "should be healthy"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with make_node() as node:
        node.close()
        yield node


@pytest.fixture
def run(node):
    """Runs one case against a provider class."""

    def run(kind, name):
        @asynccontextmanager
        async def subject():
            provider = kind(
                {"home": node.home.root, "epoch": 1, "price_per_hour": "3600"}
            )
            await provider.start(node.sink)
            try:
                await provider.agents.any_connected.wait()
                python = (sys.executable, "-I", "-S")
                yield Subject(
                    provider,
                    python,
                    options={"workdir": str(node.work)},
                    timeout_minutes=0.2 / 60,
                    patience_s=3 if kind in _LATE else 60,
                )
            finally:
                await provider.close()

        (case,) = [case for case in CASES if case.name == name]
        case.run(subject)

    return run


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    BROKEN,
    ids=[f"{kind.__name__}-{name}" for kind, name, _ in BROKEN],
)
def test_a_broken_promise_is_caught(run, kind, name, said):
    with pytest.raises(AssertionError, match=said):
        run(kind, name)


def test_an_error_of_another_kind_is_not_passed_over(run):
    with pytest.raises(ProviderError):
        run(NamelessErrors, "unknown_id")


def test_what_a_provider_does_not_offer_is_skipped(run):
    class Plain(LocalProvider):
        find_by_attempt = GpuProviderInterface.find_by_attempt

    with pytest.raises(BaseException) as caught:
        run(Plain, "lost_reply")
    assert type(caught.value).__name__ == "SkipTest"


@pytest.mark.parametrize("name", ["follow", "follow_to_the_end", "unknown_id"])
def test_the_base_classs_stream_keeps_the_promises(run, name):
    class Plain(LocalProvider):
        stream_logs = GpuProviderInterface.stream_logs
        poll_s = 0.02

        async def get_job_logs(self, job_id, lines=None):
            return await log_text(
                LocalProvider.stream_logs(self, job_id, lines=lines, follow=False)
            )

    run(Plain, name)


def test_every_case_says_what_it_shows():
    assert len({case.name for case in CASES}) == len(CASES) >= 35
    assert all(case.shows for case in CASES)
