"""A stand-in for SkyPilot's Python API, as far as gpuyard uses it, as SkyPilot 0.14 has it.

Its clusters are machines of `FakeCloud`, which really join. It takes the script of the job
apart instead of running it: tests of the script run that.
"""

import asyncio
import base64
import os
import re
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import InstanceOrder, InstanceRef
from tests.support.fake_cloud import GPU, PRICES, SMALL, SPOT_PART, FakeCloud

_cloud = FakeCloud(Path(os.environ["FAKE_SKY"]))
_pool = ThreadPoolExecutor()
_requests: dict[str, Future[Any]] = {}
_SCRIPT = re.compile(r"boot_script=([A-Za-z0-9+/=]+)")


class ResourcesUnavailableError(Exception):
    """No cloud has it."""


class ClusterDoesNotExist(ValueError):  # noqa: N818
    """It is gone."""


class StatusRefreshMode(Enum):
    """As SkyPilot's."""

    AUTO = "AUTO"


class ClusterStatus(Enum):
    """As SkyPilot's."""

    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class InstanceTypeInfo(NamedTuple):
    """A row of the catalogue, as SkyPilot's."""

    cloud: str
    instance_type: str | None
    accelerator_name: str
    accelerator_count: float
    cpu_count: float | None
    device_memory: float | None
    memory: float | None
    price: float
    spot_price: float
    region: str


class Resources:
    """As SkyPilot's: a word that it does not know is an error."""

    def __init__(
        self,
        *,
        infra: str,
        instance_type: str,
        use_spot: bool,
        disk_size: int,
        labels: dict[str, str],
        image_id: str | None = None,
        max_hourly_cost: float | None = None,
    ) -> None:
        self.cloud, self.region = infra.split("/")
        self.instance_type = instance_type
        self.use_spot = use_spot
        self.disk_size = disk_size
        self.labels = labels


class Task:
    """As SkyPilot's."""

    def __init__(self, name: str, run: str) -> None:
        self.name = name
        self.run = run
        self.resources: Resources | None = None
        self.file_mounts: dict[str, str] = {}

    def set_resources(self, resources: Resources) -> None:
        """What it runs on."""
        self.resources = resources

    def set_file_mounts(self, file_mounts: dict[str, str]) -> None:
        """Files that are brought to the machine: from where, by their paths there."""
        self.file_mounts = file_mounts


def _request(function: Callable[[], Any]) -> str:
    name = str(uuid.uuid4())
    _requests[name] = _pool.submit(function)
    return name


def get(request: str) -> Any:
    """The result of a request."""
    return _requests[request].result()


def list_accelerators(gpus_only: bool, clouds: list[str], all_regions: bool) -> str:
    """A machine with a GPU, and one without, which SkyPilot would not list: tests need
    small jobs, too.
    """
    assert gpus_only and all_regions
    rows = [_row(machine) for machine in (GPU, SMALL)]
    return _request(lambda: {"RTX3090": rows if "aws" in clouds else []})


def _row(machine: Any) -> InstanceTypeInfo:
    price = PRICES[machine.name]
    return InstanceTypeInfo(
        cloud="AWS",
        instance_type=machine.name,
        accelerator_name="RTX3090" if machine.gpus else "",
        accelerator_count=float(machine.gpus),
        cpu_count=machine.cpus,
        device_memory=machine.gpu_memory_gb or None,
        memory=machine.memory_gb,
        price=float(price),
        spot_price=float(price * SPOT_PART),
        region="here-1",
    )


def launch(
    task: Task, cluster_name: str, idle_minutes_to_autostop: int, down: bool
) -> str:
    """A machine that joins."""
    assert down and idle_minutes_to_autostop
    return _request(lambda: _launch(task, cluster_name))


def _launch(task: Task, name: str) -> None:
    resources = task.resources
    (brought,) = task.file_mounts.items()
    (target, source) = brought
    assert target in task.run and not _SCRIPT.search(task.run)
    file = Path(source)
    assert file.stat().st_mode & 0o077 == 0, "others can read it"
    script = _SCRIPT.search(file.read_text())
    assert resources and script
    order = InstanceOrder(
        owner=name,
        installation="",
        name=name,
        type=resources.instance_type,
        region=resources.region,
        zone=f"{resources.cloud}/{resources.region}",
        spot=resources.use_spot,
        user_data=base64.b64decode(script[1]).decode(),
        disk_gb=resources.disk_size,
    )
    try:
        asyncio.run(_cloud.launch(order))
    except ProviderError as error:
        raise ResourcesUnavailableError(str(error)) from None


def status(refresh: StatusRefreshMode) -> str:
    """The clusters that there are."""
    assert refresh is StatusRefreshMode.AUTO
    return _request(lambda: [_record(row) for row in _cloud.live()])


def _record(row: dict[str, Any]) -> dict[str, Any]:
    cloud, region = row["zone"].split("/")
    resources = SimpleNamespace(
        cloud=cloud,
        region=region,
        instance_type=row["type"],
        use_spot=row["spot"],
    )
    stopped = (_cloud.folder / f"stopped-{row['id']}").exists()
    return {
        "name": row["owner"],
        "handle": SimpleNamespace(launched_resources=resources),
        "status": ClusterStatus.STOPPED if stopped else ClusterStatus.UP,
        "launched_at": int(row["launched_at"]),
        "init_status_reason": None,
    }


def down(cluster_name: str) -> str:
    """Delete a cluster."""
    return _request(lambda: _down(cluster_name))


def _down(name: str) -> None:
    found = [row for row in _cloud.live() if row["owner"] == name]
    if not found:
        raise ClusterDoesNotExist(f"Cluster {name!r} does not exist.")
    refs = [InstanceRef(row["region"], row["id"]) for row in found]
    asyncio.run(_cloud.end(refs))


def api_cancel(request_ids: list[str]) -> str:
    """Launches are over before they can be cancelled."""
    return _request(lambda: [get(one) for one in request_ids])
