"""What `gpuyard verify` prints of faults in callbacks."""

import asyncio

import pytest
import uvloop

from gpuyard.verification.commands import report_unless_late


def test_a_socket_that_is_ready_twice_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def inside() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_unless_late)
        ready = loop.create_future()
        ready.set_result(None)
        loop.call_soon(ready.set_result, None)
        loop.call_soon(int, "nine")
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(inside())
    assert "'nine'" in caplog.text
    assert "invalid state" not in caplog.text
