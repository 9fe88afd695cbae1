"""AWS's EC2 whose machines are played: each is a process that really joins."""

import asyncio
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuyard.providers.instances.api import Instance, InstanceOrder, InstanceRef
from tests.support.ec2 import Ec2
from tests.support.fake_cloud import (
    GPU,
    REGION,
    SMALL,
    ZONES,
    FakeCloud,
    note_python,
)


class Ec2Players:
    """Boots a machine of `cloud` for each machine of `ec2`, and ends it with that."""

    def __init__(self, ec2: Ec2, cloud: FakeCloud) -> None:
        self.cloud = cloud
        self._ec2 = ec2
        self._played: dict[str, Instance] = {}
        ec2.on_launch = self._boot
        ec2.on_end = self._end

    def _boot(self, machine_id: str, fields: Mapping[str, str]) -> None:
        has_gpus = fields["InstanceType"].startswith(("g", "p"))
        order = InstanceOrder(
            owner=machine_id,
            installation="",
            name=machine_id,
            type=(GPU if has_gpus else SMALL).name,
            region=REGION,
            zone=ZONES[0],
            spot="InstanceMarketOptions.MarketType" in fields,
            user_data=b64decode(fields["UserData"]).decode(),
            disk_gb=100,
        )
        self._played[machine_id] = asyncio.run(self.cloud.launch(order))

    def _end(self, machine_id: str) -> None:
        played = self._played.pop(machine_id, None)
        if played is not None:
            ref = InstanceRef(played.region, played.id)
            asyncio.run(self.cloud.end([ref]))

    def log(self) -> str:
        """What the machines have printed."""
        return "\n".join(self.cloud.log(row["id"]) for row in self.cloud.rows())


@contextmanager
def playing_ec2(ec2: Ec2, folder: Path) -> Iterator[Ec2Players]:
    """`folder` is for the machines."""
    cloud = FakeCloud(folder)
    note_python(folder)
    try:
        yield Ec2Players(ec2, cloud)
    finally:
        cloud.close_all()
