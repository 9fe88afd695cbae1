"""Alibaba's ECS whose machines are played: each is a process that really joins."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.providers.instances.api import Instance, InstanceOrder, InstanceRef
from tests.support.fake_cloud import GPU, REGION, SMALL, FakeCloud
from tests.support.fake_cloud import ZONES as CLOUD_ZONES
from tests.support.fake_ecs import FakeEcs
from tests.support.fake_ecs_machines import TYPES, Machine
from tests.support.forkserver import fast_python
from tests.support.ports import free_port


class Players:
    """Boots a machine of `cloud` for each machine of `ecs`, and ends it with that."""

    def __init__(self, ecs: FakeEcs, cloud: FakeCloud) -> None:
        self.cloud = cloud
        self._ecs = ecs
        # A machine may be ended while it is being started.
        self._lock = threading.Lock()
        self._played: dict[str, Instance] = {}
        self._ended: set[str] = set()
        ecs.on_launch = self._boot
        ecs.on_end = self._end

    def _boot(self, machine: Machine, user_data: str) -> None:
        with self._lock:
            if machine.id in self._ended:
                return
            order = _order(machine, user_data)
            self._played[machine.id] = asyncio.run(self.cloud.launch(order))
            self._ecs.run(machine)

    def _end(self, machine: Machine) -> None:
        with self._lock:
            self._ended.add(machine.id)
            played = self._played.pop(machine.id, None)
        if played is not None:
            asyncio.run(self.cloud.end([InstanceRef(played.region, played.id)]))

    def log(self, machine: Machine) -> str:
        """What the machine has printed."""
        return self.cloud.log(self._played[machine.id].id)


def _order(machine: Machine, user_data: str) -> InstanceOrder:
    gpus = TYPES[machine.type][1]
    return InstanceOrder(
        owner=machine.tags["gpuyard-owner"],
        installation=machine.tags["gpuyard-installation"],
        name=machine.id,
        type=(GPU if gpus else SMALL).name,
        region=REGION,
        zone=CLOUD_ZONES[0],
        spot=machine.spot,
        user_data=user_data,
        disk_gb=100,
    )


@contextmanager
def playing_ecs(folder: Path) -> Iterator[tuple[FakeEcs, Players]]:
    """ECS in this process; `folder` is for its machines."""
    cloud = FakeCloud(folder)
    (folder / "python").write_text(fast_python())
    with FakeEcs() as ecs:
        try:
            yield ecs, Players(ecs, cloud)
        finally:
            cloud.close_all()


def ecs_environment(ecs: FakeEcs, **settings: str) -> dict[str, str]:
    """The environment of an instance that rents there. `settings`: more of
    `[providers.alibaba]`.
    """
    values = {"endpoint": ecs.endpoint, "poll_s": "0.2", "sweep_s": "1", **settings}
    section = {
        f"GPUYARD_PROVIDERS__ALIBABA__{name.upper()}": value
        for name, value in values.items()
    }
    return {
        "ALIBABA_CLOUD_ACCESS_KEY_ID": ecs.access_key_id,
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET": ecs.access_key_secret,
        "GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}",
        **section,
    }
