"""Splits the raw bytes of a terminal into lines of text, wherever the chunks were
cut.
"""

import re

LIMIT = 64 * 1024  # bytes kept of one line; nobody reads a longer one

_ESCAPE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]{0,64}[ -/]{0,8}[@-~]?"  # CSI: colours, cursor moves, erasing
    r"|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"  # OSC: window titles, links
    r"|[ -/]{0,8}[0-~]?"  # two-character escapes
    r")"
)


class LineSplitter:
    r"""Turns chunks of output into lines, each once it has ended.

    A line ends at `\r` or `\n`, because progress bars are redrawn after a `\r`. Escape
    sequences and backspaces are dropped: they only move the cursor over text that stays
    readable without them (Keras goes back over a whole bar before it draws the next).
    Blank lines and trailing spaces are dropped too; bytes that are not UTF-8 become
    U+FFFD. The rest of a line longer than `LIMIT` bytes is dropped, so memory stays
    bounded. The lines do not depend on where the chunks were cut.
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that end in `chunk`; what follows the last end is kept for the next
        call.
        """
        first, *others = chunk.replace(b"\r", b"\n").split(b"\n")
        self._append(first)
        if not others:
            return []
        unfinished = others.pop()
        ended = [bytes(self._rest), *others]
        self._rest.clear()
        self._append(unfinished)
        lines = [clean(raw) for raw in ended]
        return [line for line in lines if line]

    def flush(self) -> list[str]:
        """The last line, if the output stopped without ending it."""
        line = clean(bytes(self._rest))
        self._rest.clear()
        return [line] if line else []

    def _append(self, piece: bytes) -> None:
        self._rest += piece[: LIMIT - len(self._rest)]


def clean(raw: bytes) -> str:
    """The text of a line, without its end, colours and trailing spaces."""
    text = raw[:LIMIT].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\b" in text:
        text = text.replace("\b", "")
    return text.rstrip()
