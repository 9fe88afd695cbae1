"""The output of several pods as one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """What all sources give, as it arrives. An error of one source is raised here."""
    if len(sources) == 1:
        async for part in sources[0]:
            yield part
        return
    queue: asyncio.Queue[T | BaseException | None] = asyncio.Queue(maxsize=64)

    async def read(source: AsyncIterator[T]) -> None:
        try:
            async for part in source:
                await queue.put(part)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001  raised again by the consumer
            await queue.put(error)

    tasks = [asyncio.create_task(read(source)) for source in sources]
    try:
        open_sources = len(tasks)
        while open_sources:
            part = await queue.get()
            if isinstance(part, BaseException):
                raise part
            if part is None:
                open_sources -= 1
            else:
                yield part
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
