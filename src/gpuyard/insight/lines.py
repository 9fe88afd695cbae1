"""Cutting the raw bytes of a terminal into lines of text, however the bytes were chunked on their way here."""

import re

LIMIT = 64 * 1024  # bytes kept of one line; no program writes more for a reader

_ESCAPE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]{0,64}[ -/]{0,8}[@-~]?"  # CSI: colours, cursor moves, erasing
    r"|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"  # OSC: window titles, links
    r"|[ -/]{0,8}[0-~]?"  # two-character escapes
    r")"
)


class LineSplitter:
    r"""Turns chunks of output into lines, each once it has ended.

    A line ends at `\r` or `\n`, for progress bars are redrawn after a `\r`. Escape sequences and backspaces are
    dropped: both only move the cursor over text that stays readable without them (Keras backs over a whole bar before
    drawing the next). Blank lines are dropped, trailing blanks too; bytes that are no UTF-8 become U+FFFD. Of a line
    longer than `LIMIT` bytes the rest is discarded, so memory stays bounded. The lines do not depend on where the
    chunks were cut.
    """

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that end in `chunk`; what follows the last end is held for the next call."""
        first, *others = chunk.replace(b"\r", b"\n").split(b"\n")
        self._hold(first)
        if not others:
            return []
        rest = others.pop()
        ended = [bytes(self._held), *others]
        self._held.clear()
        self._hold(rest)
        return [line for raw in ended if (line := _clean(raw))]

    def flush(self) -> list[str]:
        """The last line, if the output stopped without ending it."""
        line = _clean(bytes(self._held))
        self._held.clear()
        return [line] if line else []

    def _hold(self, piece: bytes) -> None:
        self._held += piece[: LIMIT - len(self._held)]


def _clean(raw: bytes) -> str:
    text = raw[:LIMIT].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\b" in text:
        text = text.replace("\b", "")
    return text.rstrip()
