"""Starting real attempts, and leaving neither processes nor control groups behind."""

import os
import select
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.node.launcher import Exit, LaunchRequest, Process, spawn
from gpuyard.node.launcher.hierarchy import hierarchies
from tests.support.components import require
from tests.support.node import Node, make_node

Start = Callable[..., Process]


@pytest.fixture(scope="session", autouse=True)
def _remove_control_groups() -> Iterator[None]:
    yield
    for hierarchy in hierarchies():
        with suppress(OSError):  # others may be using it
            hierarchy.root.rmdir()


def _require_controller(name: str) -> None:
    works = any(name in hierarchy.controllers for hierarchy in hierarchies())
    require("control-groups", works, f"the controller {name}")


@pytest.fixture(scope="session")
def pids_groups() -> None:
    """Needs control groups that count processes."""
    _require_controller("pids")


@pytest.fixture(scope="session")
def memory_groups() -> None:
    """Needs control groups that limit memory."""
    _require_controller("memory")


@pytest.fixture(scope="session")
def cpu_groups() -> None:
    """Needs control groups that limit CPU time."""
    _require_controller("cpu")


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A keeper and an agent under a home of the test's own.

    Where an agent ends while jobs run, the test is marked `real_agent`.
    """
    real_agent = request.node.get_closest_marker("real_agent") is not None
    with make_node(real_agent=real_agent) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.log"


@pytest.fixture
def attempt_id() -> str:
    """One that no other test uses, also none that is running beside this one."""
    return f"att_{uuid.uuid4().hex}"


@pytest.fixture
def start(tmp_path: Path, log: Path) -> Iterator[Start]:
    """Spawn `argv` as an attempt with a new id in `tmp_path`; keywords are the
    LaunchRequest's, and `cgroups`.
    """
    started: list[Process] = []

    def spawn_one(
        *argv: str,
        cgroups: bool = True,
        environment: dict[str, str] | None = None,
        **launch,
    ) -> Process:
        attempt_id = launch.pop("attempt_id", f"att_{uuid.uuid4().hex}")
        given = {"PATH": os.environ["PATH"]} if environment is None else environment
        launch = {"workdir": tmp_path, "log": log, **launch}
        complete = {**given, "GPUYARD_ATTEMPT_ID": attempt_id}
        process = spawn(
            LaunchRequest(attempt_id, argv, complete, **launch), cgroups=cgroups
        )
        started.append(process)
        return process

    yield spawn_one
    for process in started:
        assert process.kill_all() == []
        process.reap()
        assert process.cleanup()


@pytest.fixture
def python() -> str:
    """An interpreter to run test programs with."""
    return sys.executable


@pytest.fixture
def ended() -> Callable[..., Exit]:
    """Wait for an attempt's leader to end; how it did."""

    def wait(process: Process, timeout_s: float = 20.0) -> Exit:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        assert poll.poll(timeout_s * 1000), (
            f"process {process.pid} still runs after {timeout_s:g} s"
        )
        exit = process.exit()
        assert exit is not None
        return exit

    return wait
