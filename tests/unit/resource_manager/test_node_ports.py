"""What people are told of a model server that cannot be reached on its machine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import httpx
import pytest

from gpuyard.controller.job_streams import JobStreams
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.models import ModelSpec
from gpuyard.resource_manager.node_ports import NodePort
from gpuyard.resource_manager.resident import Resident, UnhealthyError, watch_health

pytestmark = pytest.mark.anyio


class NoStreams:
    """An agent that opens no stream."""

    @asynccontextmanager
    async def open(self, job_id: str, port: int) -> AsyncGenerator[None]:
        raise RefusedError(f"another program listens at port {port}")
        yield


async def test_why_a_server_is_not_reached_is_part_of_its_fault() -> None:
    resident = Resident("chat", "job_1", ("GPU-1",), 7)
    streams = cast("JobStreams", NoStreams())
    await resident.reach_by(NodePort(streams, "job_1", 7))
    spec = ModelSpec(command=("serve", "{port}"), memory_gb=1, boot_timeout_s=0.01)
    async with httpx.AsyncClient() as client:
        with pytest.raises(UnhealthyError, match="another program listens at port 7"):
            await watch_health(resident, spec, client, lambda: None)
    resident.close_port()
