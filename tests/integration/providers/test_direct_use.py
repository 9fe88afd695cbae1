"""A provider without a gpuyard server, as the document on providers (S2) uses it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.providers import (
    GpuProviderInterface,
    GpuSpec,
    InsufficientResourcesError,
    JobConfig,
    JobResult,
    JobStatus,
    KubernetesProvider,
)
from tests.support.kubernetes import Cluster, Node

T4 = {"gpu_product": "Tesla-T4", "gpu_memory_mib": 15360, "instance_type": "t4.large"}
NODES = [Node("t4", gpus=2, **T4), Node("a100", gpus=2)]
A100 = GpuSpec(gpu_type="A100", gpu_count=1, memory_gb=40, vcpus=12, ram_gb=48)
IMAGES = frozenset({"pytorch:latest", "python:3.11-slim"})
Do = Callable[[GpuProviderInterface], Awaitable[Any]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(NODES, images=IMAGES) as cluster:
        yield cluster


@pytest.fixture
def do(cluster: Cluster, tmp_path: Path) -> Callable[[Do], Any]:
    """Does something with a provider that is closed afterwards."""

    def do(work: Do, cluster: Cluster = cluster) -> Any:
        async def run() -> Any:
            config = {
                "home": str(tmp_path),
                "kubeconfig": str(cluster.kubeconfig(tmp_path / "kubeconfig", "")),
                "namespace": "default",
                "host_paths": True,
            }
            provider: GpuProviderInterface = KubernetesProvider(config)
            try:
                return await work(provider)
            finally:
                await provider.close()

        return asyncio.run(run())

    return do


async def ended(provider: GpuProviderInterface, job_id: str) -> JobResult:
    while True:
        result = await provider.get_job_status(job_id)
        if result.status not in (JobStatus.PENDING, JobStatus.RUNNING):
            return result
        await asyncio.sleep(0.05)


def test_the_documents_job_runs_as_it_stands(do: Callable[[Do], Any]) -> None:
    """There is no train.py in the image, so each of its four tries says so."""
    gpu_spec = GpuSpec(gpu_type="A100", gpu_count=1, memory_gb=40, vcpus=12, ram_gb=48)
    job_config = JobConfig(
        name="pytorch-training",
        image="pytorch:latest",
        command=["python", "train.py"],  # pyright: ignore[reportArgumentType]
        gpu_spec=gpu_spec,
        environment={"CUDA_VISIBLE_DEVICES": "0"},
        volumes={"/data": "/host/data"},
        timeout_minutes=60,
        retry_count=3,
    )

    async def work(provider: GpuProviderInterface) -> JobResult:
        with pytest.warns(UserWarning, match="CUDA_VISIBLE_DEVICES was dropped"):
            job_id = await provider.submit_job(job_config)
        return await ended(provider, job_id)

    result = do(work)
    assert (result.status, result.exit_code) == (JobStatus.FAILED, 2)
    assert result.logs.count("No such file or directory") == 4
    assert result.node == "a100"


def test_a_job_gets_gpus_of_its_type_and_none_that_its_caller_chose(
    do: Callable[[Do], Any], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "word").write_text("from the node")
    code = (
        "import json, os; print(json.dumps([open('/data/word').read(),"
        " os.environ.get('CUDA_VISIBLE_DEVICES'),"
        " os.environ.get('NVIDIA_VISIBLE_DEVICES')]))"
    )

    async def work(provider: GpuProviderInterface) -> JobResult:
        config = JobConfig(
            name="look",
            image="python:3.11-slim",
            command=("python3", "-c", code),
            gpu_spec=A100,
            environment={
                "CUDA_VISIBLE_DEVICES": "0,1",
                "NVIDIA_VISIBLE_DEVICES": "all",
            },
            volumes={"/data": str(tmp_path / "data")},
        )
        with pytest.warns(UserWarning):
            return await ended(provider, await provider.submit_job(config))

    result = do(work)
    assert result.status is JobStatus.COMPLETED, result
    word, cuda, nvidia = json.loads(result.logs)
    assert (result.node, word) == ("a100", "from the node")
    assert cuda != "0,1"
    assert nvidia in NODES[1].uuids


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (A100, "1 A100 GPUs of 40 GB"),
        (GpuSpec(memory_gb=40), "1 GPUs of 40 GB"),
        (GpuSpec(gpu_type="A1000"), "there is no GPU class 'A1000'"),
    ],
)
def test_a_cluster_of_t4s_refuses_what_it_has_not(
    do: Callable[..., Any], need: GpuSpec, said: str
) -> None:
    async def work(provider: GpuProviderInterface) -> None:
        config = JobConfig(
            name="a", image="python:3.11-slim", command=("true",), gpu_spec=need
        )
        with pytest.raises(InsufficientResourcesError, match=said) as caught:
            await provider.submit_job(config)
        assert caught.value.requested_spec == need
        assert caught.value.error_code == "INSUFFICIENT_RESOURCES"

    with Cluster([NODES[0]]) as only_t4s:
        do(work, only_t4s)


def test_what_the_provider_lists_can_be_asked_for(do: Callable[[Do], Any]) -> None:
    async def work(provider: GpuProviderInterface) -> list[str]:
        nodes: list[str] = []
        for spec in await provider.list_available_gpus():
            config = JobConfig(
                name="a", image="python:3.11-slim", command=("true",), gpu_spec=spec
            )
            result = await ended(provider, await provider.submit_job(config))
            nodes.append(result.node)
        return nodes

    assert sorted(do(work)) == ["a100", "t4"]


def test_a_cancelled_job_is_not_run_again(do: Callable[[Do], Any]) -> None:
    async def work(provider: GpuProviderInterface) -> JobResult:
        config = JobConfig(
            name="a",
            image="python:3.11-slim",
            command=("sh", "-c", "echo a try; sleep 60"),
            retry_count=3,
        )
        job_id = await provider.submit_job(config)
        while not await provider.get_job_logs(job_id):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert await provider.cancel_job(job_id)
        return await ended(provider, job_id)

    result = do(work)
    assert (result.status, result.logs) == (JobStatus.CANCELLED, "a try\n")
