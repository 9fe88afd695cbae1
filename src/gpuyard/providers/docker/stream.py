"""Reads the output of a blocking client without blocking."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from gpuyard.domain.errors import ProviderError


async def in_thread(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The parts of a blocking iterator, which is read in its own thread.

    The thread ends when the consumer closes this generator.
    """
    loop = asyncio.get_running_loop()
    parts = asyncio.Queue[bytes | ProviderError | None](64)
    is_closed = threading.Event()

    def put(part: bytes | ProviderError | None) -> None:
        future = asyncio.run_coroutine_threadsafe(parts.put(part), loop)
        while not is_closed.is_set():
            with suppress(TimeoutError):
                future.result(1.0)
                return
        future.cancel()

    def read() -> None:
        end: ProviderError | None = None
        try:
            for part in source:
                put(part)
                if is_closed.is_set():
                    return
        except Exception as error:  # noqa: BLE001  raised again by the consumer
            end = ProviderError(
                f"The output broke off: {error}", "docker", "NOT_CONNECTED"
            )
        with suppress(RuntimeError):  # the event loop is closed
            put(end)

    threading.Thread(target=read, name="docker-log", daemon=True).start()
    try:
        while (part := await parts.get()) is not None:
            if isinstance(part, ProviderError):
                raise part
            yield part
    finally:
        is_closed.set()
        with suppress(Exception):
            # The client's streams have `close`, but their type does not show it.
            getattr(source, "close")()  # noqa: B009
