"""The standard input of an attempt whose job is interactive. All who are attached to
the job write to it.
"""

import asyncio

from gpuyard.config.descriptor import Descriptor
from gpuyard.node.input_pipe import PipeHolder
from gpuyard.node.journal import AttemptJournal, JournalEntry


class InputEndedError(Exception):
    """Somebody has ended the input."""


class AttemptInput:
    """The input of one attempt. `ended` is set once somebody has ended it."""

    def __init__(self, record: JournalEntry, journal: AttemptJournal) -> None:
        self.ended = asyncio.Event()
        self._record = record
        self._journal = journal
        self._writer: Descriptor | None = None
        # What one person types is not mixed up with what another does.
        self._turn = asyncio.Lock()
        if record.input_ended:
            self.ended.set()
            # The previous agent may have died before it did that.
            self._let_go()

    async def write(self, data: bytes) -> None:
        """Write all of it, as fast as the program reads.

        Raises InputEndedError, or OSError when the program has closed its side.
        """
        async with self._turn:
            if self.ended.is_set():
                raise InputEndedError
            if self._writer is None:
                self._writer = Descriptor(self._open())
            await self._writer.write(data)

    async def end(self) -> None:
        """Let the program find the end of its input behind what was written."""
        async with self._turn:
            if self.ended.is_set():
                return
            # From here to its end without a pause: whoever has ended it may leave.
            self._record.input_ended = True
            self._journal.note(self._record.start.attempt_id, input_ended=True)
            self._let_go()
            self.ended.set()

    async def close(self) -> None:
        """The attempt is over."""
        if self._writer:
            self._writer.finish()  # whoever writes to it has the turn
        async with self._turn:
            self._let_go()
        if self._holder:
            await asyncio.to_thread(self._holder.reap)

    def _let_go(self) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None
        if self._holder:
            self._holder.dismiss()

    def _open(self) -> int:
        if self._holder is None:
            raise BrokenPipeError
        return self._holder.open_pipe()

    @property
    def _holder(self) -> PipeHolder | None:
        noted = self._record.input_holder
        return PipeHolder(*noted) if noted else None
