"""`local` keeps what every provider promises: the conformance suite over a real keeper,
agent and processes.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.providers.conformance import CASES, Case, Subject
from gpuyard.providers.local import LocalProvider
from tests.support.clock import survive_a_jump
from tests.support.node import Node, make_node
from tests.support.nvml import FakeGpus
from tests.support.nvml import fixtures as nvml

nvml_library = nvml.nvml_library


@asynccontextmanager
async def open_subject(node: Node, **fields: Any) -> AsyncIterator[Subject]:
    """The node's `local` provider, opened anew; `fields` are the Subject's."""
    provider = LocalProvider(
        {
            "home": node.home.root,
            "epoch": 1,
            "price_per_hour": "3600",
            "currency": "EUR",
        }
    )
    await provider.start(node.sink)
    try:
        await provider.agents.any_connected.wait()
        options = {"workdir": str(node.work)}
        missing = {"workdir": str(node.work / "no-such-folder")}
        python = (sys.executable, "-I", "-S")
        given = {
            "options": options,
            "missing_workdir": missing,
            "timeout_minutes": 1.5 / 60,
        } | fields
        yield Subject(provider, python, **given)
    finally:
        await provider.close()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node whose server's end is left to the cases."""
    with make_node() as node:
        node.close()
        yield node


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, node: Node) -> None:
    case.run(lambda: open_subject(node))


def test_a_clock_that_jumps_ends_no_job_early_and_keeps_none_too_long(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def jump() -> None:
        async with open_subject(node) as subject:
            try:
                await survive_a_jump(subject, monkeypatch)
            finally:
                await subject.clean_up()

    asyncio.run(jump())


WITH_GPUS = ("completes", "available_gpus", "too_much")


@pytest.fixture(scope="module")
def gpu_node(
    nvml_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node with more GPUs than a case asks for."""
    gpus = FakeGpus(tmp_path_factory.mktemp("gpus") / "gpus.txt", nvml_library)
    for number in range(2):
        gpus.add(f"GPU-{number}")
    with make_node(gpus.env()) as node:
        node.close()
        yield node


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in WITH_GPUS], ids=str
)
def test_conformance_with_gpus(case: Case, gpu_node: Node) -> None:
    a100 = GpuSpec(gpu_type="A100", gpu_count=1, memory_gb=40)
    case.run(
        lambda: open_subject(
            gpu_node, gpu_spec=a100, too_much=GpuSpec(gpu_type="A100", gpu_count=3)
        )
    )
