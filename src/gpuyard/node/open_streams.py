"""The streams that people have open to one attempt, and its input: they end with it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from gpuyard.node.attempt_input import AttemptInput
from gpuyard.node.journal import AttemptJournal, JournalEntry


class OpenStreams:
    """Those of one attempt. `over` is set once the attempt's own program has ended."""

    def __init__(self, record: JournalEntry, journal: AttemptJournal) -> None:
        self.input = AttemptInput(record, journal)
        self.over = asyncio.Event()
        self._commands = 0
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    @contextmanager
    def command(self) -> Generator[None]:
        """While a command of the attempt is started and runs: `end` waits for it."""
        self._commands += 1
        self._all_ended.clear()
        try:
            yield
        finally:
            self._commands -= 1
            if not self._commands:
                self._all_ended.set()

    async def end(self) -> None:
        """Let all streams end; returns when no command runs any more.

        So no command is started in a control group that is being removed, or holds a
        GPU that the next job has.
        """
        self.over.set()
        await self._all_ended.wait()
        await self.input.close()
