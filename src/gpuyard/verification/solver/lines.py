"""Messages over standard output, where no stream is possible: one a line, each behind a word of its own."""

import os

from .messages import Message, line
from .order import Order, OrderError

WORD = b"gpuyard-verify "


class Lines:
    """Standard output, of which nobody else gets a word: what engines print goes to standard error."""

    # With its word and its envelope a line stays under 4,096 bytes, which a pipe takes whole or not at all.
    piece_bytes = 2880

    def __init__(self, order: Order) -> None:
        self._seed = order.seed
        self._out = os.dup(1)
        os.dup2(2, 1)

    def send(self, message: Message) -> None:
        """Write it. The line before may be another's and unfinished, where both outputs are one file."""
        data = memoryview(b"\n" + WORD + line(message))
        while data:
            data = data[os.write(self._out, data) :]

    def seed(self) -> int:
        """The order's."""
        if self._seed is None:
            raise OrderError("seed: must be given where there is no stream to bring it")
        return self._seed

    def close(self) -> None:
        """Nothing more is said."""
        os.close(self._out)
