"""A controller with one fake host, checked at the end of every test for what must
always hold.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.controlled import Controlled


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    made = Controlled(tmp_path)
    with capture_logs() as logged:
        await made.start()
        yield made
        await made.settled()
        made.check()
        await made.stop()
    assert not [entry for entry in logged if entry["event"] == "background work failed"]
