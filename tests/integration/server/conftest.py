"""What tests of the server's parts share."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
