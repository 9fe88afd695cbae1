"""Turns of calls of one kind, at the pace that a cloud takes."""

import asyncio
import time

from gpuyard.providers.instances.learned_pace import LearnedPace


class CallTurns:
    """Lets calls of one kind go one after the other, as fast as `pace` has learned."""

    def __init__(self) -> None:
        self.pace = LearnedPace()
        self._lock = asyncio.Lock()

    async def wait(self) -> float:
        """Returns when a call may be sent, with the time (monotonic seconds)."""
        async with self._lock:
            while True:
                now = time.monotonic()
                wait_s = self.pace.wait_s(now)
                if not wait_s:
                    self.pace.sent(now)
                    return now
                await asyncio.sleep(wait_s)
