"""Lines of text out of parts of a stream, however the parts are cut."""

import codecs


class LineReader:
    """Bytes in, whole lines out, without their ends.

    A part may end within a line, or within a character.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held: list[str] = []

    def feed(self, part: bytes) -> list[str]:
        """The lines that `part` completes."""
        *whole, rest = self._decode(part).split("\n")
        if whole:
            whole[0] = "".join([*self._held, whole[0]])
            self._held = []
        self._held.append(rest)
        return whole

    def close(self) -> list[str]:
        """What is left when the stream ends: a last line that was not ended, or
        nothing.
        """
        last = "".join([*self._held, self._decode(b"", True)])
        return [last] if last else []
