"""An instance with a pool of machines of the fake cloud, and the death of its server in
the life of one of them.
"""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuyard.client.connection import running_server
from tests.support.fake_cloud import KILLS, FakeCloud, fake_cloud_environment
from tests.support.instance import TestInstance, make_instance
from tests.support.joined import nodes
from tests.support.ports import free_port
from tests.support.wait import wait_until

MOMENTS = (*KILLS, "booting", "joined", "running")
"""When the server may be killed in the life of a pool's node."""
_POOL = """
[pools.warm]
provider = "fakecloud"
type = "cpu.small"
idle = "1s"
"""


class CloudPool:
    """An instance whose own node takes no jobs, its pool `warm`, and the cloud."""

    def __init__(self, instance: TestInstance, cloud: FakeCloud) -> None:
        self.instance = instance
        self.cloud = cloud

    def pool(self) -> dict[str, Any]:
        """The pool as the command shows it."""
        return self.instance.json("pools", "show", "warm")

    def survive(self, moment: str) -> None:
        """Kill the server at this moment of a node's life and start it again: the job
        for which the node was asked completes, one machine was started for each node,
        and nothing is left.
        """
        before = {row["owner"] for row in self.cloud.rows()}
        if moment in KILLS:
            self.cloud.add_fault(moment)
        go = self.instance.work / "go"
        go.unlink(missing_ok=True)
        # What it prints goes with its node.
        said = self.instance.work / f"said-{len(before)}"
        program = f"until [ -e {go} ]; do sleep 0.05; done; echo done >> {said}"
        words = ("run", "--detach", "--provider", "local", "--name", moment)
        job = self.instance.ok(*words, "--", "sh", "-c", program).strip()
        if moment in ("booting", "joined", "running"):
            self._reach(moment, job)
        else:
            go.touch()
            # Not by a command, which would start another server.
            self._wait(lambda: running_server(self.instance.home) is None, moment)
        self.instance.kill("server")
        go.touch()
        self.instance.ok("up")
        self._wait(lambda: self.instance.job(job).state == "completed", job)
        assert said.read_text() == "done\n", self.told()
        self._wait(self._is_over, "all nodes to go")
        self._check_rows(before)

    def _reach(self, moment: str, job: str) -> None:
        if moment == "booting":
            self._wait(self.cloud.live, "a machine")
        elif moment == "joined":
            self._wait(lambda: self.pool()["nodes"]["joined"], "a node")
        else:
            self._wait(lambda: self.instance.job(job).state == "running", job)

    def _is_over(self) -> bool:
        is_node = any(node["pool"] for node in nodes(self.instance).values())
        is_counted = any(self.pool()["nodes"].values())
        return not self.cloud.live() and not is_node and not is_counted

    def _check_rows(self, before: set[str]) -> None:
        """Each machine is that of one node, which has its cost."""
        machines = [row for row in self.cloud.rows() if row["owner"] not in before]
        owners = [row["owner"] for row in machines]
        assert owners and len(set(owners)) == len(owners), self.told()
        known = {row["reference"]: row for row in self.pool()["newest_nodes"]}
        for machine in machines:
            row = known[f"{machine['region']}/{machine['id']}"]
            assert row["state"] == "gone", self.told()
            assert row["price_per_hour"] == "0.10", self.told()

    def _wait(self, over: Callable[[], Any], what: str) -> None:
        try:
            wait_until(over, what=what, timeout=300)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.told()}") from None

    def told(self) -> str:
        """What is known, for whoever reads a failure."""
        logs = [self.cloud.log(row["id"]) for row in self.cloud.rows()]
        shown = self.instance.run("pools", "show", "warm", "--json")
        rows = json.dumps(self.cloud.rows(), indent=1)
        said = (shown.stdout, shown.stderr, rows, *logs, self.instance.newest_logs())
        return "\n".join(said)


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
