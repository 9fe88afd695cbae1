"""Output that comes from a blocking client."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from gpuyard.domain.errors import ProviderError


async def in_thread(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A blocking iterator, read in a thread of its own for as long as anybody listens."""
    loop, parts = asyncio.get_running_loop(), asyncio.Queue[bytes | ProviderError | None](64)
    left = threading.Event()

    def put(part: bytes | ProviderError | None) -> None:
        done = asyncio.run_coroutine_threadsafe(parts.put(part), loop)
        while not left.is_set():
            with suppress(TimeoutError):
                done.result(1.0)
                return
        done.cancel()

    def read() -> None:
        end: ProviderError | None = None
        try:
            for part in source:
                put(part)
                if left.is_set():
                    return
        except Exception as error:  # noqa: BLE001  whatever it is, the listener has to hear of it
            end = ProviderError(f"The output broke off: {error}", "docker", "NOT_CONNECTED")
        with suppress(RuntimeError):  # the loop is gone
            put(end)

    threading.Thread(target=read, name="docker-log", daemon=True).start()
    try:
        while (part := await parts.get()) is not None:
            if isinstance(part, ProviderError):
                raise part
            yield part
    finally:
        left.set()
        with suppress(Exception):
            getattr(source, "close")()  # noqa: B009  the client's streams have one, and it is not in their type
