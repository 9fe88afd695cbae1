"""The connections of a listener, each served by a task of its own."""

import asyncio
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress


class ConnectionTasks:
    """The tasks of the connections that are open now."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def serving(self, writer: asyncio.StreamWriter) -> Generator[asyncio.Task[None]]:
        """While the task that calls it, which is given, serves the connection of
        `writer`. The connection is closed at the end; that it has broken, or was ended
        from here, is no error.
        """
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with closing(writer), suppress(OSError, ValueError):
                yield task
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)

    def cancel(self) -> None:
        """Let all of them end."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """End all of them; returns when they have ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
