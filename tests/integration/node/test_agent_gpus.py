"""An agent's GPUs, from a fake NVML: what it tells the server, and what a job is
given.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import GpuSpec
from tests.support.node import Node, make_node, wait_for
from tests.support.nvml import FakeGpus
from tests.support.nvml import fixtures as nvml

fake_gpus = nvml.fake_gpus
nvml_library = nvml.nvml_library
VISIBLE = (
    "import os; print(os.environ['CUDA_VISIBLE_DEVICES'],"
    " os.environ['CUDA_DEVICE_ORDER'])"
)


@pytest.fixture
def start(fake_gpus: FakeGpus) -> Iterator[Callable[[], Node]]:
    """Starts the node once the test has put GPUs into it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(make_node(fake_gpus.env()))


@pytest.fixture
def node(fake_gpus: FakeGpus, start: Callable[[], Node]) -> Node:
    """A node with an A100 and a T4."""
    fake_gpus.add("GPU-a")
    fake_gpus.add(
        "GPU-b",
        "Tesla T4",
        15360,
        cc="7.5",
        memory_used_mb=360,
        temperature=40,
        utilization=50,
    )
    return start()


def seen(node: Node, condition: Callable[[wire.GpusSeen], object]) -> wire.GpusSeen:
    """Wait for a report of GPUs that meets the condition."""

    def found() -> list[wire.GpusSeen]:
        return [report for report in node.sink.of(wire.GpusSeen) if condition(report)]

    return wait_for(found, "such GPUs")[0]


def test_hello_tells_the_gpus(node):
    first, second = node.linked().gpus
    assert (first.uuid, first.index, first.name, first.memory_mb) == (
        "GPU-a",
        0,
        "NVIDIA A100-SXM4-40GB",
        40960,
    )
    assert (first.compute_capability, first.driver, first.problem) == (
        "8.0",
        "550.54.14",
        None,
    )
    assert (second.uuid, second.index, second.free_mb, second.temperature_c) == (
        "GPU-b",
        1,
        15000,
        40,
    )
    assert second.utilization == 0.5
    assert node.linked().problem is None


def test_a_node_without_gpus_says_so_and_that_is_no_problem(start):
    hello = start().linked()
    assert (hello.gpus, hello.problem) == ([], None)


@pytest.mark.parametrize("at", ["handle", "reads"])
def test_a_gpu_that_is_lost_is_reported_with_a_problem_and_comes_back(
    node, fake_gpus, at
):
    fake_gpus.lose("GPU-a", at)
    report = seen(node, lambda report: any(gpu.problem for gpu in report.gpus))
    lost, well = report.gpus
    assert (lost.uuid, lost.name, lost.memory_mb) == (
        "GPU-a",
        "NVIDIA A100-SXM4-40GB",
        40960,
    )
    assert "lost" in lost.problem.lower()
    assert (well.uuid, well.problem) == ("GPU-b", None)
    before = len(node.sink.of(wire.GpusSeen))
    fake_gpus.set("GPU-a", lost=None)
    wait_for(
        lambda: any(
            all(gpu.problem is None for gpu in report.gpus)
            for report in node.sink.of(wire.GpusSeen)[before:]
        ),
        "its return",
    )


def test_a_gpu_lost_before_the_agent_came_is_reported_as_far_as_it_is_known(
    fake_gpus, start
):
    fake_gpus.add("GPU-a")
    fake_gpus.add("GPU-b")
    fake_gpus.add("GPU-c")
    fake_gpus.lose("GPU-a", "handle")
    fake_gpus.lose("GPU-b", "reads")
    hello = start().linked()
    assert [(gpu.uuid, bool(gpu.problem)) for gpu in hello.gpus] == [
        ("GPU-b", True),
        ("GPU-c", False),
    ]
    assert "GPU 0 cannot be used" in hello.problem


def test_gpus_that_come_and_go_are_reported(node, fake_gpus):
    fake_gpus.add("GPU-c")
    report = seen(node, lambda report: len(report.gpus) == 3)
    assert [(gpu.uuid, gpu.index) for gpu in report.gpus] == [
        ("GPU-a", 0),
        ("GPU-b", 1),
        ("GPU-c", 2),
    ]
    fake_gpus.remove("GPU-a")
    report = seen(node, lambda report: report.gpus and report.gpus[0].uuid == "GPU-b")
    assert [gpu.uuid for gpu in report.gpus] == ["GPU-b", "GPU-c"]
    # What comes and goes during a run is known to the next server, too.
    node.close()
    node.open()
    assert [gpu.uuid for gpu in node.linked(2).gpus] == ["GPU-b", "GPU-c"]


def test_a_driver_that_fails_as_a_whole_is_a_problem_of_the_node(node, fake_gpus):
    fake_gpus.fail("nvmlDeviceGetCount_v2", 999)
    report = seen(node, lambda report: report.problem)
    assert [(gpu.uuid, gpu.state) for gpu in report.gpus] == [
        ("GPU-a", "offline"),
        ("GPU-b", "offline"),
    ]
    fake_gpus.fail("nvmlDeviceGetCount_v2", 0)
    seen(
        node,
        lambda report: (
            report.problem is None
            and [gpu.state for gpu in report.gpus] == ["idle", "idle"]
        ),
    )


def test_a_job_sees_exactly_the_gpus_it_was_given_by_uuid(node):
    for uuids in (["GPU-b"], ["GPU-b", "GPU-a"], []):
        node_id = node.linked().node_id
        job = node.start(
            VISIBLE,
            node_id=node_id,
            gpu_uuids=uuids,
            environment={"CUDA_VISIBLE_DEVICES": "7"},
        )
        assert node.ended(job).exit_code == 0
        assert node.output(job) == f"{','.join(uuids)} PCI_BUS_ID\n"


def test_a_job_that_names_a_type_is_given_one(node):
    jobs = [
        node.start(VISIBLE, gpu_spec=GpuSpec(gpu_type=kind)) for kind in ("A100", "T4")
    ]
    for job in jobs:
        node.ended(job)
    assert [node.output(job).split()[0] for job in jobs] == ["GPU-a", "GPU-b"]


def test_a_gpu_is_never_given_to_two_attempts(node):
    """The agent is the last guard: whatever the server thinks, the second is refused
    and the first runs on.
    """
    placed = {"node_id": node.linked().node_id, "gpu_uuids": ["GPU-a", "GPU-b"]}
    first = node.start(
        "print('here', flush=True); import time; time.sleep(1000)", **placed
    )
    node.says(first, "here")
    second = node.start("print('two')", **placed | {"gpu_uuids": ["GPU-b"]})
    ended = node.ended(second)
    assert (ended.reason, ended.exit_code, ended.started_at) == ("gpu_busy", None, None)
    assert "GPU-b" in ended.message
    # Nor does an agent that reads it in its journal start it after all.
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    wait_for(lambda: len(node.sink.of(wire.Ended, second)) == 2, "the repeated report")
    assert node.sink.of(wire.Ended, second)[1] == ended
    assert node.output(second) == ""
    node.stop(first)
    node.ended(first)
    third = node.start("print('three')", **placed)
    assert node.ended(third).exit_code == 0


def test_a_gpu_is_free_when_its_memory_is(node, fake_gpus):
    """The driver takes a moment to give back what a process had: until then its attempt
    is not over.
    """
    job = node.start(
        "import os; print(os.getpid(), flush=True); import time; time.sleep(1000)",
        node_id=node.linked().node_id,
        gpu_uuids=["GPU-a"],
    )
    pid = int(wait_for(lambda: node.output(job), "its number"))
    fake_gpus.run("GPU-a", pid, 9000)
    fake_gpus.set("GPU-a", memory_used_mb=9000)
    seen(node, lambda report: report.gpus[0].free_mb < 32000)
    node.stop(job)
    wait_for(
        lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
        "its program to be gone",
    )
    looks = len(node.sink.of(wire.GpusSeen))
    wait_for(lambda: len(node.sink.of(wire.GpusSeen)) >= looks + 5, "five more looks")
    assert not node.sink.of(wire.Ended, job)
    fake_gpus.leave("GPU-a", pid)
    assert node.ended(job).stopped == "cancelled"
