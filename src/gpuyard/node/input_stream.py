"""Input for the program of an interactive job, from one of the people who are attached
to it.
"""

import asyncio
from typing import Any

from gpuyard.domain.frame_channel import FrameChannel
from gpuyard.domain.stream_frames import InputOver, InputOverCause
from gpuyard.node.attempt import AttemptRun
from gpuyard.node.attempt_input import AttemptInput, InputEndedError

_DYING_S = 1.0


async def pass_input_on(attempt: AttemptRun, channel: FrameChannel) -> None:
    """Write what the client sends to the program's standard input, until that or the
    attempt is over, or the client has gone.

    ValueError when the client sends what it may not.
    """
    listening = asyncio.create_task(channel.listen(lambda _: None))
    writing = asyncio.create_task(_write(attempt.streams.input, channel))
    ended = asyncio.create_task(attempt.streams.input.ended.wait())
    over = asyncio.create_task(attempt.streams.over.wait())
    waits: set[asyncio.Future[Any]] = {listening, writing, ended, over}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            listening.result()
            return
        cause = writing.result() if writing.done() else InputOverCause.ENDED
        if cause is InputOverCause.CLOSED:
            # What ends closes its input first.
            await asyncio.wait({over}, timeout=_DYING_S)
        # A program whose input somebody has ended may be over before all have heard.
        if over.done() and not attempt.streams.input.ended.is_set():
            cause = InputOverCause.ATTEMPT_OVER
        await channel.send(InputOver(cause))
        channel.end()
        await asyncio.wait({listening})  # the client hangs up when it has read that
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _write(target: AttemptInput, channel: FrameChannel) -> InputOverCause:
    try:
        async for data in channel.input():
            await target.write(data)
    except InputEndedError:
        return InputOverCause.ENDED
    except OSError:
        return InputOverCause.CLOSED
    await target.end()
    return InputOverCause.ENDED
