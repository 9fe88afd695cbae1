"""What the base class adds to a provider that has S2's seven calls only."""

import asyncio
from decimal import Decimal

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import JobNotFoundError
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.cost import cost_of
from gpuyard.providers.placing import gpu_spec_of


class SevenCalls(GpuProviderInterface):
    """A job writes a line at each look, and is over after three."""

    PROVIDER_NAME = "seven"
    poll_s = 0.0

    def __init__(self) -> None:
        super().__init__({})
        self.submitted: list[JobConfig] = []
        self.cancelled: list[str] = []
        self.log = "one\n"

    async def submit_job(self, job_config: JobConfig) -> str:
        self.submitted.append(job_config)
        return "job"

    async def get_job_status(self, job_id: str) -> JobResult:
        if job_id != "job":
            raise JobNotFoundError(job_id, "seven")
        done = self.log.endswith("three\n")
        self.log += "" if done else "three\n" if "two" in self.log else "two\n"
        return JobResult(job_id, JobStatus.COMPLETED if done else JobStatus.RUNNING)

    async def cancel_job(self, job_id: str) -> bool:
        self.cancelled.append(job_id)
        return True

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        return self.log

    async def get_cost_info(self, job_id: str) -> CostInfo:
        return CostInfo(job_id, Decimal(0), "USD")

    async def list_available_gpus(self) -> list[GpuSpec]:
        return []

    async def health_check(self) -> dict[str, str]:
        return {"status": "healthy"}


def test_an_order_arrives_as_a_job_config():
    provider = SevenCalls()
    order = AttemptOrder(
        attempt_id="attempt_1", name="j", command=("true",), timeout_s=90, workdir="/w"
    )
    assert asyncio.run(provider.submit_attempt(order)) == "job"
    (config,) = provider.submitted
    assert (config.attempt_id, config.timeout_minutes) == ("attempt_1", 1.5)
    assert config.provider_options["workdir"] == "/w"


def test_a_followed_log_ends_with_the_job_and_has_each_line_once():
    async def follow() -> bytes:
        provider = SevenCalls()
        stream = provider.stream_logs("job", lines=None, follow=True)
        return b"".join([part async for part in stream])

    assert asyncio.run(follow()) == b"one\ntwo\nthree\n"


def test_polling_leaves_out_what_is_not_known():
    found = asyncio.run(SevenCalls().poll_jobs(["job", "other"]))
    assert list(found) == ["job"]


def test_stopping_is_cancelling():
    provider = SevenCalls()
    assert asyncio.run(provider.stop_job("job", checkpoint=True))
    assert provider.cancelled == ["job"]


def test_a_cost_counts_from_the_start_to_the_end():
    waiting = JobResult("job", JobStatus.PENDING)
    assert cost_of(waiting, Decimal(36), "EUR").total_cost == 0
    running = JobResult("job", JobStatus.RUNNING, started_at=100.0)
    assert cost_of(running, Decimal(36), "EUR", now=200.0).total_cost == 1
    ended = JobResult("job", JobStatus.COMPLETED, started_at=100.0, completed_at=150.0)
    cost = cost_of(ended, Decimal(36), "EUR", now=200.0)
    assert (cost.total_cost, cost.currency) == (Decimal("0.5"), "EUR")
    assert sum(cost.cost_breakdown.values()) == cost.total_cost


def test_an_offer_becomes_a_gpu_spec():
    spec = gpu_spec_of(Offer("x/t4", "x", "T4", 2, cpus=8, memory_gb=32))
    assert (spec.gpu_type, spec.gpu_count, spec.memory_gb) == ("T4", 2, 16)
    assert (spec.vcpus, spec.ram_gb) == (8, 32)
