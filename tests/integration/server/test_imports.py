"""What the server imports: nothing slow before it schedules jobs, and no HTTP client
where it needs none.
"""

import sys

import pytest

from tests.support.programs import run_program

SCHEDULING = "gpuyard.server.__main__"
SERVING = "gpuyard.server.http_server"
LOOK = """
import importlib, sys
from gpuyard.config.plain_structlog import import_structlog
import_structlog()
if sys.argv[1] == "gpuyard.server.http_server":
    from gpuyard.server.plain_fastapi import do_without_old_models
    do_without_old_models()
importlib.import_module(sys.argv[1])
print(*(name for name, module in sys.modules.items() if module))
"""


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        (
            SCHEDULING,
            {
                "aiohttp",
                "alembic",
                "colorama",
                "fastapi",
                "gpuyard.insight.forms",
                "greenlet",
                "httpx",
                "prometheus_client",
                "rich",
                "sqlalchemy.dialects.postgresql",
                "starlette",
                "uvicorn",
                "websockets",
            },
        ),
        (SERVING, {"aiohttp", "httpx", "pydantic.v1", "websockets.client"}),
    ],
    ids=["before it schedules jobs", "without webhooks and models"],
)
def test_what_the_server_does_not_import(module: str, slow: set[str]):
    command = [sys.executable, "-c", LOOK, module]
    done = run_program(command, timeout=60)
    imported = set(done.stdout.split())
    assert "structlog" in imported
    assert imported & slow == set()
