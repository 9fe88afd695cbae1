"""Schemathesis over the whole OpenAPI document: what the server answers is what it says
that it answers.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.instance import TestInstance
from tests.support.wait import wait_until
from tests.support.web import http, spec

# A body of the right form may still be refused: most made-up programs, nodes and jobs
# are not there.
UNFIT = "positive_data_acceptance"
# It would end the server, and with it everything that comes after.
STOP = "/api/v1/server/stop"
# It would end the job that keeps all others waiting, and made-up commands would run.
CANCEL_MANY = "/api/v1/jobs:cancel"
# All requests after it would be refused.
ROTATE = "/api/v1/tokens:rotate-owner"


# Each parameter at its limits is 8,000 requests: `make soak` sends them.
EXAMPLES = os.environ.get("EXAMPLES")
PHASES = "examples,coverage,fuzzing,stateful" if EXAMPLES else "fuzzing,stateful"


@pytest.fixture
def full_instance(instance: TestInstance) -> Iterator[TestInstance]:
    """An instance whose one node is taken: what is made up is queued and never runs."""
    instance.ok("up")
    with http(instance) as web:
        nodes = wait_until(
            lambda: web.get("/api/v1/nodes").json()["items"], what="the node to join"
        )
        body = spec(
            instance,
            "sleep",
            "600",
            name="x",
            priority=5,
            resources={"cpus": nodes[0]["cpus"]},
        )
        job_id = web.post("/api/v1/jobs", json=body).json()["id"]
    instance.wait(job_id, "running")
    yield instance


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_found_by_schemathesis(
    full_instance: TestInstance, tmp_path: Path
) -> None:
    """`make soak` looks longer; a failure is shown with the request that repeats
    it.
    """
    address = full_instance.address()
    command = [
        str(Path(sys.executable).with_name("st")),
        "run",
        f"{address.url}/openapi.json",
        "--header",
        f"Authorization: Bearer {address.token}",
        "--exclude-path",
        STOP,
        "--exclude-path",
        CANCEL_MANY,
        "--exclude-path",
        ROTATE,
        "--checks",
        "all",
        "--exclude-checks",
        UNFIT,
        "--max-examples",
        EXAMPLES or "2",
        "--phases",
        PHASES,
        "--seed",
        "7",
        "--generation-deterministic",
        "--request-timeout",
        "20",
        "--suppress-health-check",
        "all",
        "--warnings",
        "off",
        "--continue-on-failure",
        "--no-color",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
