"""An instance with a pool, and the death of its server in the life of a node: of rented
machines of the fake cloud, or of pods on a full fake of a Kubernetes cluster.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuyard.client.connection import running_server
from tests.support.fake_cloud import KILLS, FakeCloud, fake_cloud_environment
from tests.support.instance import TestInstance, make_instance
from tests.support.joined import nodes
from tests.support.kubernetes import Cluster
from tests.support.kubernetes.faults import Fault
from tests.support.ports import free_port
from tests.support.wait import wait_until

STAGES = ("booting", "joined", "running")
"""How far a node may be when its server is killed."""
MOMENTS = (*KILLS, *STAGES)
"""When the server may be killed in the life of a node on a rented machine."""
CALLS = {
    f"{when} {method}{path}": (when, method, path)
    for method, path in (
        ("POST", "/jobs$"),
        ("POST", "/secrets$"),
        ("PATCH", "/jobs/"),
        ("DELETE", "/jobs/"),
    )
    for when in ("cut", "cut_after")
}
"""The calls of the life of a node on Kubernetes: whether it is cut before or after it is carried out, its method, and
its path.
"""
_POOL = """
[pools.warm]
provider = "fakecloud"
type = "cpu.small"
idle = "1s"
"""


class KilledPool(ABC):
    """An instance whose own node takes no jobs, and its pool `warm`. `folder`: what the
    pool's nodes and this machine both see.
    """

    def __init__(self, instance: TestInstance, folder: Path) -> None:
        self.instance = instance
        self._folder = folder
        self._rounds = 0

    @abstractmethod
    def arm(self, moment: str) -> None:
        """Let the server's next call of this moment be the last that it makes."""

    @abstractmethod
    def has_come(self, moment: str) -> bool:
        """Whether that call was made."""

    @abstractmethod
    def machines(self) -> list[Any]:
        """Those that live."""

    @abstractmethod
    def check(self, before: set[str]) -> None:
        """Check that one machine was started for each node. `before`: the references of
        the nodes that there were before.
        """

    @abstractmethod
    def told(self) -> str:
        """What is known, for whoever reads a failure."""

    def pool(self) -> dict[str, Any]:
        """The pool as the command shows it."""
        return self.instance.json("pools", "show", "warm")

    def rows(self) -> dict[str, dict[str, Any]]:
        """The newest nodes, by the references of their machines."""
        return {row["reference"]: row for row in self.pool()["newest_nodes"]}

    def survive(self, moment: str) -> None:
        """Kill the server at this moment of a node's life and start it again: the job
        for which the node was asked completes, one machine was started for each node,
        and nothing is left.
        """
        before = set(self.rows())
        self._rounds += 1
        if moment not in STAGES:
            self.arm(moment)
        go = self._folder / "go"
        go.unlink(missing_ok=True)
        # What it prints goes with its node.
        said = self._folder / f"said-{self._rounds}"
        program = f"until [ -e {go} ]; do sleep 0.05; done; echo done >> {said}"
        words = ("run", "--detach", "--provider", "local", "--name", moment)
        job = self.instance.ok(*words, "--", "sh", "-c", program).strip()
        if moment in STAGES:
            self._reach(moment, job)
        else:
            go.touch()
            self._wait(lambda: self.has_come(moment), moment)
        self.instance.kill("server")
        go.touch()
        self.instance.ok("up")
        self._wait(lambda: self.instance.job(job).state == "completed", job)
        assert said.read_text() == "done\n", self.told()
        self._wait(self._is_over, "all nodes to go")
        self.check(before)

    def _reach(self, moment: str, job: str) -> None:
        if moment == "booting":
            self._wait(self.machines, "a machine")
        elif moment == "joined":
            self._wait(lambda: self.pool()["nodes"]["joined"], "a node")
        else:
            self._wait(lambda: self.instance.job(job).state == "running", job)

    def _is_over(self) -> bool:
        is_node = any(node["pool"] for node in nodes(self.instance).values())
        is_counted = any(self.pool()["nodes"].values())
        return not self.machines() and not is_node and not is_counted

    def _wait(self, over: Callable[[], Any], what: str) -> None:
        try:
            wait_until(over, what=what, timeout=300)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.told()}") from None


class CloudPool(KilledPool):
    """One of machines that the fake cloud rents out. In a call that is armed, the cloud
    kills the server itself.
    """

    def __init__(self, instance: TestInstance, cloud: FakeCloud) -> None:
        super().__init__(instance, instance.work)
        self.cloud = cloud

    def arm(self, moment: str) -> None:
        self.cloud.add_fault(moment)

    def has_come(self, moment: str) -> bool:
        # Not by a command, which would start another server.
        return running_server(self.instance.home) is None

    def machines(self) -> list[Any]:
        return self.cloud.live()

    def check(self, before: set[str]) -> None:
        known = self.rows()
        by_reference = {
            f"{row['region']}/{row['id']}": row for row in self.cloud.rows()
        }
        new = by_reference.keys() - before
        owners = [by_reference[reference]["owner"] for reference in new]
        assert owners and len(set(owners)) == len(owners), self.told()
        for reference in new:
            row = known[reference]
            # Each has its cost.
            state = (row["state"], row["price_per_hour"])
            assert state == ("gone", "0.10"), self.told()

    def told(self) -> str:
        logs = [self.cloud.log(row["id"]) for row in self.cloud.rows()]
        shown = self.instance.run("pools", "show", "warm", "--json")
        rows = json.dumps(self.cloud.rows(), indent=1)
        said = (shown.stdout, shown.stderr, rows, *logs, self.instance.newest_logs())
        return "\n".join(said)


class ClusterPool(KilledPool):
    """One of pods on a full fake of a Kubernetes cluster. A call that is armed is
    carried out, or not, and never answered.
    """

    def __init__(self, instance: TestInstance, cluster: Cluster, folder: Path) -> None:
        super().__init__(instance, folder)
        self._cluster = cluster
        self._fault: Fault | None = None

    def arm(self, moment: str) -> None:
        when, method, path = CALLS[moment]
        faults = self._cluster.faults
        self._fault = getattr(faults, when)(method, path)

    def has_come(self, moment: str) -> bool:
        return self._fault is not None and self._fault.met > 0

    def machines(self) -> list[Any]:
        return [*self._cluster.objects("jobs"), *self._cluster.objects("pods")]

    def check(self, before: set[str]) -> None:
        self._cluster.check_gpus()
        secrets = self._cluster.objects("secrets")
        names = [secret["metadata"]["name"] for secret in secrets]
        assert not [name for name in names if "poolnode" in name], self.told()
        new = {key: row for key, row in self.rows().items() if key not in before}
        assert [row["state"] for row in new.values()] == ["gone"], self.told()

    def told(self) -> str:
        shown = self.instance.run("pools", "show", "warm", "--json")
        objects = json.dumps(self.machines(), indent=1)
        return "\n".join((shown.stdout, objects, self.instance.newest_logs()))


@contextmanager
def pooled_instance(folder: Path) -> Generator[CloudPool]:
    """An instance with a pool in the cloud in `folder`; nothing is left afterwards."""
    cloud = FakeCloud(folder)
    with make_instance(**fake_cloud_environment(folder, free_port(2))) as instance:
        try:
            instance.home.create()
            instance.home.settings.write_text(_POOL)
            instance.ok("up")
            (own,) = nodes(instance)
            instance.ok("nodes", "cordon", own)
            yield CloudPool(instance, cloud)
        finally:
            cloud.close_all()
