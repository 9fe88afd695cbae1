"""Messages over standard output, where the solver cannot connect to the hub."""

import os

from .messages import Message, line
from .order import OrderError, SolverOrder

WORD = b"> "


class StandardOutput:
    """Standard output, for messages only.

    What engines print goes to standard error.
    """

    # So a line stays under 4,096 bytes, which a pipe takes in one piece.
    piece_bytes = 2880

    def __init__(self, order: SolverOrder) -> None:
        self._seed = order.seed
        self._out = os.dup(1)
        os.dup2(2, 1)

    def send(self, message: Message) -> None:
        """Write a message on a line of its own.

        It starts with a line end, because the line before may be unfinished where both
        outputs are one file.
        """
        data = memoryview(b"\n" + WORD + line(message))
        while data:
            data = data[os.write(self._out, data) :]

    def seed(self) -> int:
        """The seed in the order."""
        if self._seed is None:
            raise OrderError("seed: must be given where there is no stream to bring it")
        return self._seed

    def salt(self) -> str:
        """Nothing, because nobody can answer here."""
        return ""

    def close(self) -> None:
        """Close the channel."""
        os.close(self._out)
