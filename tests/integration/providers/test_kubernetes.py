"""The provider `kubernetes` on a full fake of a cluster, whose containers are
processes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.providers.conformance import CASES, Subject
from gpuyard.providers.conformance.subject import STAY, Case
from gpuyard.providers.kubernetes.provider import KubernetesProvider
from tests.support.clock import survive_a_jump
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.access import Rule

IMAGE = "python:3.11-slim"
NODES = [
    Node("gpu-1", gpus=2, cpus=16, memory_gb=64),
    Node("gpu-2", gpus=2, cpus=16, memory_gb=64),
    Node("cpu-1", cpus=64, memory_gb=256),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(NODES) as cluster:
        yield cluster


def provider(cluster: Cluster, home: Path, **settings: Any) -> KubernetesProvider:
    config = cluster.kubeconfig(home / "kubeconfig", "")
    values = {
        "home": str(home),
        "kubeconfig": str(config),
        "namespace": "default",
        "poll_s": 0.1,
        **settings,
    }
    return KubernetesProvider(values)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, cluster: Cluster, tmp_path: Path) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        kubernetes = provider(cluster, tmp_path, prices={"test.large": 3600})
        yield Subject(kubernetes, image=IMAGE, pause_s=0.05)
        await kubernetes.close()

    case.run(subject)


def test_a_command_needs_a_right_and_no_new_server(tmp_path: Path) -> None:
    rules = [Rule(resources=("jobs", "pods", "pods/log", "nodes", "events"))]

    async def check() -> None:
        with Cluster(NODES, version="1.29") as old:
            kubernetes = provider(old, tmp_path)
            subject = Subject(kubernetes, image=IMAGE, pause_s=0.05)
            job_id = await subject.running(subject.job(STAY))
            request = RunCommand(["sh", "-c", "echo here; exit 3"])
            command = await kubernetes.start_command(job_id, request)
            assert await command.read_output(100) == b"here\n"
            assert await command.exit_code() == 3
            await command.close()

            config = old.kubeconfig(tmp_path / "few", old.token("few", rules))
            few = provider(old, tmp_path, kubeconfig=str(config))
            with pytest.raises(ProviderError, match="the rights `get` and `create` on"):
                await few.start_command(job_id, request)
            await few.close()
            await subject.clean_up()
            await kubernetes.close()

    asyncio.run(check())


def test_a_clock_that_jumps_ends_no_job_early_and_keeps_none_too_long(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def jump() -> None:
        kubernetes = provider(cluster, tmp_path)
        subject = Subject(kubernetes, image=IMAGE, pause_s=0.05)
        try:
            await survive_a_jump(subject, monkeypatch)
        finally:
            await subject.clean_up()
            await kubernetes.close()

    asyncio.run(jump())
