"""What the provider has, what it costs, and whether it is well."""

import asyncio
import time
import warnings
from decimal import Decimal

from gpuyard.domain.errors import InsufficientResourcesError
from gpuyard.domain.jobconfig import CostInfo, GpuSpec
from gpuyard.providers.conformance.subject import STAY, Subject, case, need


async def check_too_much(subject: Subject) -> None:
    """More than the provider can supply is refused with InsufficientResourcesError,
    which holds what was asked for.
    """
    config = subject.job("pass", gpu_spec=subject.too_much)
    try:
        job_id = await subject.submit(config)
    except InsufficientResourcesError as error:
        assert error.requested_spec == subject.too_much, (
            f"requested_spec should be {subject.too_much}: {error.requested_spec}"
        )
        assert error.provider == subject.provider.PROVIDER_NAME, (
            f"the error should name the provider: {error.provider!r}"
        )
        assert error.error_code == "INSUFFICIENT_RESOURCES", (
            f"the code is another: {error.error_code!r}"
        )
    else:
        raise AssertionError(
            f"{subject.too_much} should be refused; it became job {job_id!r}"
        )


async def check_cost(subject: Subject) -> None:
    """Costs are decimals in a currency, grow while the job runs, and are final after
    its end.
    """
    job_id = await subject.running(subject.job(STAY))
    first = await _cost(subject, job_id)
    deadline = time.monotonic() + subject.patience_s
    while (later := await _cost(subject, job_id)).total_cost <= first.total_cost:
        assert time.monotonic() < deadline, (
            f"the cost of a running job should grow: it stays at {later.total_cost}"
        )
        await asyncio.sleep(subject.pause_s)
    await subject.provider.cancel_job(job_id)
    await subject.ended(job_id)
    final = await _cost(subject, job_id)
    assert final.total_cost >= later.total_cost, (
        f"a cost should not shrink: {later} then {final}"
    )
    await subject.succeed(subject.job("import time; time.sleep(0.1)"))
    assert await _cost(subject, job_id) == final, (
        "the cost of an ended job should be final"
    )


async def _cost(subject: Subject, job_id: str) -> CostInfo:
    cost = await subject.provider.get_cost_info(job_id)
    assert cost.job_id == job_id, f"the cost of {job_id} speaks of {cost.job_id}"
    assert isinstance(cost.total_cost, Decimal), (
        f"money is Decimal: {cost.total_cost!r}"
    )
    assert cost.total_cost >= 0, f"a cost is not negative: {cost}"
    assert len(cost.currency) == 3 and cost.currency.isupper(), (
        f"a currency has an ISO 4217 code: {cost.currency!r}"
    )
    parts = sum(cost.cost_breakdown.values(), Decimal(0))
    assert not cost.cost_breakdown or parts == cost.total_cost, (
        f"the parts should add up to the whole: {cost}"
    )
    return cost


async def check_available_gpus(subject: Subject) -> None:
    """`list_available_gpus` lists GpuSpecs that say what and how many."""
    for spec in await subject.provider.list_available_gpus():
        assert isinstance(spec, GpuSpec), f"it should be a GpuSpec: {spec!r}"
        assert spec.gpu_type, f"the type of GPU is missing: {spec}"
        assert spec.gpu_count > 0 and spec.memory_gb, (
            f"the count and memory are missing: {spec}"
        )


async def check_health(subject: Subject) -> None:
    """A provider that takes jobs says that it is healthy."""
    health = await subject.provider.health_check()
    assert health.get("status") == "healthy", f"the status should be healthy: {health}"


async def check_no_gpu_unless_asked(subject: Subject) -> None:
    """A job that asked for no GPU sees none: CUDA_VISIBLE_DEVICES is empty, whatever
    its environment says.
    """
    need(subject.gpu_spec.gpu_count == 0, "every job here has GPUs")
    code = "import os; print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    for environment in ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}):
        with warnings.catch_warnings():
            # That the variable is dropped is what the case is about.
            warnings.simplefilter("ignore")
            log = await subject.succeed(subject.job(code, environment=environment))
        assert log.strip() == "''", (
            f"CUDA_VISIBLE_DEVICES should be empty: {log.strip()}"
        )


CASES = tuple(
    map(
        case,
        (
            check_too_much,
            check_cost,
            check_available_gpus,
            check_health,
            check_no_gpu_unless_asked,
        ),
    )
)
