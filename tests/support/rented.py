"""An instance that rents machines from the fake cloud, and words for what a test does
with it.
"""

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

MOMENTS = (*KILLS, "joined", "running")
"""When the server may be killed in the life of a machine."""


class Rented:
    """An instance that rents machines, and its cloud."""

    def __init__(self, instance: TestInstance, cloud: FakeCloud) -> None:
        self.instance = instance
        self.cloud = cloud

    def run(self, *words: str) -> str:
        """Submit a job for the cloud; its id."""
        words = ("--detach", "--provider", "fakecloud", *words)
        return self.instance.ok("run", *words).strip()

    def attempts(self, job: str) -> list[dict[str, Any]]:
        """Its attempts, oldest first."""
        found: list[dict[str, Any]] = self.instance.json("show", job)["attempts"]
        return found

    def machine(self, job: str) -> dict[str, Any]:
        """Wait for the machine of its newest attempt."""

        def found() -> Any:
            attempts = self.attempts(job)
            return attempts and self.cloud.rows(attempts[-1]["id"])

        return self.until(found, "a machine", job)[0]

    def until(self, condition: Callable[[], Any], what: str, job: str) -> Any:
        """Wait; a failure tells what is known of the job."""
        try:
            return wait_until(condition, what=f"{what} for {job}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.told(job)}") from None

    def state(self, job: str, *states: str) -> Any:
        """Wait until the job is in one of these states."""
        try:
            return self.instance.wait(job, *states)
        except AssertionError:
            raise AssertionError(f"{job} is not {states}: {self.told(job)}") from None

    def told(self, job: str) -> str:
        """What is known of it, for whoever reads a failure."""
        logs = [self.cloud.log(row["id"]) for row in self.cloud.rows()]
        attempts = map(str, self.attempts(job))
        return "\n".join((*attempts, *logs, self.instance.newest_logs()))

    def nothing_is_left(self) -> None:
        """Wait until no machine costs anything, and none is a node."""
        wait_until(lambda: not self.cloud.live(), what="all machines to end")
        rented = {"fakecloud"}
        wait_until(
            lambda: not rented & {one["provider"] for one in self.nodes().values()},
            what="the nodes of ended machines to go",
        )

    def nodes(self) -> dict[str, Any]:
        """The nodes of the instance, by name."""
        return nodes(self.instance)

    def survive(self, moment: str) -> None:
        """Kill the server at this moment of a job's life and start it again: the job
        completes, on one machine for each attempt, and nothing is left.
        """
        if moment in KILLS:
            self.cloud.add_fault(moment)
        go = self.instance.work / "go"
        go.unlink(missing_ok=True)
        if moment != "running":
            go.touch()
        program = f"until [ -e {go} ]; do sleep 0.05; done; echo done"
        job = self.run("--name", moment, "--", "sh", "-c", program)
        if moment == "joined":
            self.until(self._has_joined, "a node", job)
        elif moment == "running":
            self.state(job, "running")
        if moment in KILLS:
            # Not by a command, which would start another server.
            wait_until(
                lambda: running_server(self.instance.home) is None,
                what=f"the server to be killed at {moment}",
            )
        self.instance.kill("server")
        go.touch()
        self.instance.ok("up")
        self.state(job, "completed")
        assert self.instance.ok("logs", job) == "done\n", self.told(job)
        self.nothing_is_left()
        for attempt in self.attempts(job):
            machines = self.cloud.rows(attempt["id"])
            assert len(machines) == 1, f"{moment}: {machines}"
            assert attempt["state"] == "ended"
        assert len(self.attempts(job)) == 1, self.told(job)

    def _has_joined(self) -> bool:
        return any(node["provider"] == "fakecloud" for node in self.nodes().values())


@contextmanager
def renting_instance(folder: Path, **environment: str) -> Generator[Rented]:
    """An instance that rents from a cloud in `folder`; nothing is left afterwards."""
    cloud = FakeCloud(folder)
    rented = fake_cloud_environment(folder, free_port(2))
    with make_instance(**rented, **environment) as instance:
        try:
            yield Rented(instance, cloud)
        finally:
            cloud.close_all()
