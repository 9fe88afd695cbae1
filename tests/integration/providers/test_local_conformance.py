"""`local` keeps what every provider promises: the conformance suite over a real keeper, agent and processes."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from gpuyard.providers.conformance import CASES, Case, Subject
from gpuyard.providers.local import LocalProvider
from tests.support.node import Node, make_node

Open = Callable[[], AbstractAsyncContextManager[Subject]]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node whose server's end is left to the cases."""
    with make_node() as node:
        node.close()
        yield node


@pytest.fixture
def subject(node: Node) -> Open:
    @asynccontextmanager
    async def open_subject() -> AsyncIterator[Subject]:
        provider = LocalProvider({"home": node.home.root, "epoch": 1, "price_per_hour": "3600", "currency": "EUR"})
        await provider.start(node.sink)
        try:
            await provider.joined.wait()
            options = {"workdir": str(node.work)}
            missing = {"workdir": str(node.work / "no-such-folder")}
            python = (sys.executable, "-I", "-S")
            yield Subject(provider, python, options=options, missing_workdir=missing, timeout_minutes=0.5 / 60)
        finally:
            await provider.close()

    return open_subject


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, subject: Open) -> None:
    case.run(subject)
