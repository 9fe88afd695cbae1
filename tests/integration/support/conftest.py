"""A client of the fake cluster, the real one, for tests that are not asynchronous."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client, config

from tests.support.components import require
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.objects import Object, condition
from tests.support.wait import wait_until

CPU = Node("cpu-1", cpus=4, memory_gb=8)
GPUS = Node(
    "gpu-1", gpus=2, cpus=8, memory_gb=16, taints=("nvidia.com/gpu=present:NoSchedule",)
)


class Client:
    """`core`, `batch` and the others are the classes of kubernetes_asyncio; `do` waits
    for what they return.
    """

    def __init__(self, cluster: Cluster, folder: Path, token: str = "") -> None:
        self._runner = asyncio.Runner()
        self.cluster = cluster
        self._runner.run(
            self._connect(cluster.kubeconfig(folder / f"config-{token[:8]}", token))
        )

    async def _connect(self, path: Path) -> None:
        configuration = client.Configuration()
        await config.load_kube_config(
            config_file=str(path), client_configuration=configuration
        )
        self.api = client.ApiClient(configuration)
        self.core = client.CoreV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self.authorization = client.AuthorizationV1Api(self.api)
        self.version = client.VersionApi(self.api)

    def do(self, awaitable: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await asyncio.wait_for(awaitable, 30)

        return self._runner.run(wait())

    def refused(self, awaitable: Awaitable[Any]) -> client.ApiException:
        """The error it must end with."""
        with pytest.raises(client.ApiException) as raised:
            self.do(awaitable)
        return raised.value

    def create(self, manifest: Object, space: str = "default") -> Any:
        """A pod or a Job."""
        calls: dict[str, Any] = {
            "Pod": self.core.create_namespaced_pod,
            "Job": self.batch.create_namespaced_job,
        }
        return self.do(calls[manifest["kind"]](space, manifest))

    def log(self, pod: str, **options: Any) -> str:
        return self.do(self.core.read_namespaced_pod_log(pod, "default", **options))

    async def get(self, path: str, **query: str) -> str:
        """The raw reply to what the client has no method for."""
        words = [*query.items()]
        reply = await self.api.call_api(
            path,
            "GET",
            query_params=words,
            auth_settings=["BearerToken"],
            response_types_map={200: "str"},
            _preload_content=False,
        )
        return (await reply.read()).decode()

    def close(self) -> None:
        self._runner.run(self.api.close())
        self._runner.close()


def pods_of(cluster: Cluster, job: str) -> list[Object]:
    """Oldest first."""
    mine = [
        each
        for each in cluster.objects("pods")
        if each["metadata"].get("labels", {}).get("job-name") == job
    ]
    return sorted(mine, key=lambda each: int(each["metadata"]["resourceVersion"]))


def in_phase(cluster: Cluster, pod: str, *phases: str) -> Object:
    """Wait until the pod is in one of these phases."""

    def look() -> Object | None:
        found = cluster.get("pods", pod)
        return found if found and found["status"]["phase"] in phases else None

    return wait_until(look, what=f"{pod} to be {phases}") or {}


def with_condition(cluster: Cluster, job: str, kind: str) -> Object:
    """Wait until that condition of a Job is true, and return the Job's status."""

    def look() -> Object | None:
        found = cluster.get("jobs", job)
        met = condition(found, kind) if found else None
        return found["status"] if found and met and met["status"] == "True" else None

    return wait_until(look, what=f"{job} to be {kind}") or {}


def gone(cluster: Cluster, plural: str, name: str) -> None:
    """Wait until there is no such object."""
    wait_until(lambda: cluster.get(plural, name) is None, what=f"{plural}/{name} to go")


def said(cluster: Cluster, name: str) -> dict[str, str]:
    """The messages of the events about an object, by their reasons."""
    return {
        each["reason"]: each["message"]
        for each in cluster.objects("events")
        if each["involvedObject"]["name"] == name
    }


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    require("kubernetes", os.geteuid() == 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One that all tests of a module share, as long as they leave its nodes alone."""
    with Cluster([CPU, GPUS]) as cluster:
        yield cluster


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients: of a cluster, with a token."""
    clients: list[Client] = []

    def make(cluster: Cluster, token: str = "") -> Client:
        clients.append(Client(cluster, tmp_path, token))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


@pytest.fixture
def kube(cluster: Cluster, connect: Callable[..., Client]) -> Client:
    """The administrator's."""
    return connect(cluster)
