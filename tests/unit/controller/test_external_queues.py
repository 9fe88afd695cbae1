"""What the answers of an external queue mean when some of them are broken."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from gpuyard.controller.external_queues import _answers
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.providers.base import GpuProviderInterface


class Queue:
    """A provider that cannot read the answers about the jobs in `broken`."""

    def __init__(self, **broken: Exception) -> None:
        self._broken = broken

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        for job_id in job_ids:
            if job_id in self._broken:
                raise self._broken[job_id]
        return {job_id: JobResult(job_id, JobStatus.RUNNING) for job_id in job_ids}


def ask(queue: Queue, *job_ids: str) -> Mapping[str, JobResult]:
    return asyncio.run(_answers(cast("GpuProviderInterface", queue), job_ids))


def test_one_broken_answer_hides_no_other() -> None:
    found = ask(Queue(b=KeyError("code"), d=TypeError("x")), "a", "b", "c", "d")
    assert [found[job_id].status for job_id in "abcd"] == [
        JobStatus.RUNNING,
        JobStatus.UNKNOWN,
        JobStatus.RUNNING,
        JobStatus.UNKNOWN,
    ]
    assert found["b"].error_message == "its state cannot be read: KeyError: 'code'"


def test_a_provider_that_can_read_no_answer_is_itself_at_fault() -> None:
    with pytest.raises(KeyError):
        ask(Queue(a=KeyError("code"), b=KeyError("code")), "a", "b")


def test_a_provider_that_is_away_is_not_asked_job_by_job() -> None:
    with pytest.raises(ProviderError, match="away"):
        ask(Queue(a=ProviderError("away")), "a", "b")
