"""Another program that holds the ledger locked."""

import time
from collections.abc import Iterator

import httpx
import pytest

from gpuyard.client.connection import running_server
from tests.acceptance.conftest import instance
from tests.support.instance import TestInstance
from tests.support.ledger import holding

__all__ = ["instance"]
BODY = {"command": ["true"]}


@pytest.fixture
def http(instance: TestInstance) -> Iterator[httpx.Client]:
    """A connection to the running server that sends nothing again by itself."""
    instance.ok("up")
    address = running_server(instance.home)
    assert address
    headers = {"Authorization": f"Bearer {address.token}"}
    # Less than the server would stand still for.
    with httpx.Client(base_url=address.url, headers=headers, timeout=8) as client:
        yield client


def test_a_locked_ledger_stops_no_answer(
    instance: TestInstance, http: httpx.Client
) -> None:
    with holding(instance.home.ledger, "BEGIN EXCLUSIVE") as holder:
        refused = http.post("/api/v1/jobs", json=BODY)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        assert refused.json()["code"] == "ledger_busy"
        with instance.popen("run", "--detach", "--", "true") as command:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                assert http.get("/healthz").status_code == 200
                assert http.get("/api/v1/jobs").json()["items"] == []
            assert command.poll() is None
            holder.kill()
            # The command sends it again.
            assert command.wait(30) == 0
    assert len(http.get("/api/v1/jobs").json()["items"]) == 1
