"""Reports keep no other work waiting."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from gpuyard.server.report_threads import AT_ONCE, in_report_thread

ENOUGH_S = 60.0


def test_other_work_has_a_thread_however_many_reports_are_read():
    is_over = Event()
    begun: list[int] = []

    def read(number: int) -> None:
        begun.append(number)
        assert is_over.wait(ENOUGH_S)

    async def main() -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        numbers = range(4 * AT_ONCE)
        reports = [
            asyncio.create_task(in_report_thread(read, each)) for each in numbers
        ]
        # Each has asked for its thread.
        await asyncio.sleep(0)
        others = asyncio.to_thread(lambda: len(begun))
        begun_meanwhile = await asyncio.wait_for(others, ENOUGH_S)
        is_over.set()
        await asyncio.gather(*reports)
        return begun_meanwhile

    assert asyncio.run(main()) <= AT_ONCE
    assert len(begun) == 4 * AT_ONCE
