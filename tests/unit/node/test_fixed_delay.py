"""Calls after one delay: in their order, unless they are cancelled."""

import asyncio

from gpuyard.node.fixed_delay import FixedDelay


def test_calls_are_made_in_their_order_but_for_the_cancelled() -> None:
    made: list[int] = []

    async def scenario() -> None:
        delay = FixedDelay(0.01)
        # The timer has run out before the second ones are asked for.
        for first in (0, 10):
            last_made = asyncio.Event()
            numbers = range(first, first + 5)
            calls = [
                delay.call(lambda it=number: made.append(it)) for number in numbers
            ]
            delay.call(last_made.set)
            for cancelled in (0, 3):
                calls[cancelled].cancel()
            await asyncio.wait_for(last_made.wait(), 60)

    asyncio.run(scenario())
    assert made == [1, 2, 4, 11, 12, 14]
