"""Answers of providers that are shared, kept, and waited for only so long; and the
machines of clouds, which are asked for so.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.controller.kept_answers import KeptAnswer, KeptAnswers
from gpuyard.controller.rented_nodes import RentedNodes
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.configured import Providers
from gpuyard.providers.instances.api import (
    Instance,
    InstanceApi,
    InstanceRef,
    InstanceState,
)
from gpuyard.providers.instances.provider import RentedProvider
from gpuyard.providers.instances.settings import InstanceSettings
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
LONG_S = 1e6


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Cloud:
    """Has these machines. It counts how often it was asked for them, and answers only
    while `answers` is set.
    """

    def __init__(self, *names: str) -> None:
        self.machines = [
            Instance(name, "r", "r-a", "big", False, InstanceState.RUNNING, "", 1.0)
            for name in names
        ]
        self.asked = 0
        self.fault: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def instances(self, installation: str) -> Sequence[Instance]:
        self.asked += 1
        machines = list(self.machines)
        await self.answers.wait()
        if self.fault:
            raise self.fault
        return machines

    async def end(self, refs: Sequence[InstanceRef]) -> None:
        ended = {ref.id for ref in refs}
        self.machines = [one for one in self.machines if one.id not in ended]


class Rented(RentedProvider):
    def _installation(self) -> str:
        return "here"


def renting(**clouds: Cloud) -> RentedNodes:
    """An instance with these clouds, on whose machines nothing runs."""
    settings = InstanceSettings()
    providers = Providers(
        {
            name: Rented({}, cast("InstanceApi", cloud), settings)
            for name, cloud in clouds.items()
        }
    )
    view = SimpleNamespace(attempts={}, nodes={})
    core: Any = SimpleNamespace(view=view)
    joined: Any = SimpleNamespace(rented_node=no_node)
    unused: Any = None
    return RentedNodes(core, joined, unused, unused, providers, unused)


def no_node(_: str) -> str:
    return ""


def ids(found: dict[str, Any]) -> list[str]:
    return [item["id"] for item in found["items"]]


async def test_a_cloud_is_asked_once_for_all_who_look_and_anew_after_an_end() -> None:
    cloud = Cloud("i-1", "i-2")
    nodes = renting(aws=cloud)
    looks = await asyncio.gather(*(nodes.machines() for _ in range(20)))
    assert all(ids(found) == ["i-1", "i-2"] for found in looks)
    await nodes.machines()
    assert cloud.asked == 1
    fleet = nodes.providers.rented["aws"].fleet
    await fleet.end(["r/i-1"])
    assert ids(await nodes.machines()) == ["i-2"]
    assert cloud.asked == 2
    # An answer that was on its way when a machine ended may still have it.
    reading = asyncio.create_task(fleet.read())
    cloud.answers.clear()
    await eventually(lambda: cloud.asked == 3, "the question")
    await fleet.end(["r/i-2"])
    cloud.answers.set()
    await reading
    assert ids(await nodes.machines()) == []


async def test_a_cloud_that_fails_is_left_alone_and_hides_no_other() -> None:
    broken = Cloud("i-1")
    broken.fault = ProviderError("the credentials are bad", "aws")
    nodes = renting(aws=broken, other=Cloud("i-2"))
    for _ in range(2):
        found = await nodes.machines()
        assert ids(found) == ["i-2"]
        assert found["problems"] == {"aws": "the credentials are bad"}
        assert found["told_at"]["aws"] is None
        assert found["told_at"]["other"] > 0
    assert broken.asked == 1


async def test_what_is_slow_delays_nobody_and_its_last_answer_stays() -> None:
    slow = Cloud("i-1")
    quick = Cloud("i-2")
    clouds = {"slow": slow, "quick": quick}

    async def ask(name: str) -> int:
        return len(await clouds[name].instances(""))

    slow.answers.clear()
    kept = KeptAnswers(ask, keep_s=0.0, patience_s=0.01)
    for _ in range(2):
        found = await kept.look(clouds)
        assert found["quick"] == KeptAnswer(1)
        assert found["slow"].value is None
        assert found["slow"].problem.startswith("it has not answered for ")
    assert (slow.asked, quick.asked) == (1, 2)
    (asking,) = [one for one in asyncio.all_tasks() if one.get_name() == "ask-slow"]
    slow.answers.set()
    await asking
    slow.answers.clear()
    found = await kept.look(["slow"])
    assert found["slow"].value == 1
    assert found["slow"].problem


async def test_a_question_ends_after_a_while_and_odd_faults_are_told() -> None:
    async def ask(name: str) -> int:
        if name == "odd":
            return {}[name]
        return await asyncio.get_running_loop().create_future()

    kept = KeptAnswers(ask, patience_s=LONG_S, timeout_s=0.01)
    found = await kept.look(["dead", "odd"])
    assert found["dead"].problem == "it did not answer within 0.01 s"
    assert found["odd"].problem == "KeyError: 'odd'"
