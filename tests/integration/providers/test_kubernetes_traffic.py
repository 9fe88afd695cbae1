"""How many requests gpuyard sends to a cluster, and when it knows of an end."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from gpuyard.domain.jobconfig import GpuSpec, JobResult, JobStatus
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import STAY
from tests.integration.providers.test_kubernetes_life import (
    asked_without_watches,
    polled,
    run,
)
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.objects import Object, holds


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster([Node("one", gpus=2, cpus=8)]) as cluster:
        yield cluster


def test_looking_for_checkpoints_without_a_spool_takes_no_request(cluster, tmp_path):
    async def work(instance: Subject) -> int:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        before = asked_without_watches(cluster)
        for _ in range(20):
            assert await instance.provider.checkpoints(job_id) == []
        asked = asked_without_watches(cluster) - before
        await instance.clean_up()
        return asked

    assert run(cluster, tmp_path, work) == 0


def noted(number: int) -> Callable[[Object], None]:
    """Changes a Job, so that its watch has something to tell."""

    def change(job: Object) -> None:
        job["metadata"]["annotations"]["test/number"] = str(number)

    return change


def test_who_follows_a_job_that_waits_asks_nothing_until_it_begins(cluster, tmp_path):
    cluster.cordon("one")

    async def work(instance: Subject) -> tuple[int, bytes]:
        provider = instance.provider
        job_id = await instance.submit(instance.job("print('here')"))
        await polled(instance, job_id, JobStatus.PENDING)

        async def follow() -> bytes:
            parts = provider.stream_logs(job_id, lines=None, follow=True)
            return b"".join([part async for part in parts])

        followers = [asyncio.create_task(follow()) for _ in range(5)]
        before = asked_without_watches(cluster)
        for number in range(20):
            await asyncio.to_thread(cluster.edit, "jobs", job_id, noted(number))
            await provider.news(5)
        assert asked_without_watches(cluster) == before
        assert not any(one.done() for one in followers)
        await asyncio.to_thread(cluster.cordon, "one", False)
        before = cluster.faults.count("pods/log")
        outputs = set(await asyncio.gather(*followers))
        return cluster.faults.count("pods/log") - before, *outputs

    # Each reads what there is, and once more, since a stream may end too early.
    assert run(cluster, tmp_path, work) == (10, b"here\n")


def test_nothing_to_do_costs_a_list_of_nodes_now_and_then(cluster, tmp_path):
    async def work(instance: Subject) -> int:
        await instance.provider.offers()
        await instance.provider.poll_jobs([])
        before = asked_without_watches(cluster)
        for _ in range(3):
            await instance.provider.offers()
            await instance.provider.poll_jobs([])
        return asked_without_watches(cluster) - before

    assert run(cluster, tmp_path, work) == 3


def test_an_end_is_known_before_the_cluster_marks_the_job(tmp_path):
    with Cluster([Node("one")], job_mark_s=3600) as cluster:

        async def work(instance: Subject) -> tuple[JobResult, bool]:
            spec = GpuSpec(gpu_count=0)
            job_id = await instance.submit(instance.job("pass", gpu_spec=spec))
            result = await polled(instance, job_id)
            return result, holds(cluster.get("jobs", job_id) or {}, "Complete")

        result, is_marked = run(cluster, tmp_path, work)
    assert (result.status, result.exit_code) == (JobStatus.COMPLETED, 0)
    assert not is_marked


def test_what_changes_is_news(cluster, tmp_path):
    async def work(instance: Subject) -> None:
        provider = instance.provider
        await provider.poll_jobs([])
        waiting = asyncio.create_task(provider.news(3600))
        job_id = await instance.submit(instance.job("pass"))
        await waiting
        while True:
            result = (await provider.poll_jobs([job_id])).get(job_id)
            if result and result.status.is_over:
                return
            await provider.news(3600)

    run(cluster, tmp_path, work)
