"""The provider `kubernetes` on a full fake of a cluster, whose containers are
processes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.providers.conformance import CASES, Subject
from gpuyard.providers.conformance.subject import Case
from gpuyard.providers.kubernetes.provider import KubernetesProvider
from tests.support.clock import survive_a_jump
from tests.support.kubernetes import Cluster, Node

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
