"""Hides secret values in output: each byte of a value becomes an asterisk, so that
offsets into the output stay valid.
"""

import re
from collections.abc import Iterable

# Shorter values would hide ordinary words.
_SHORTEST = 8


class Mask:
    """Hides values of at least eight bytes, and the lines of longer ones."""

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line for value in values for line in (value, *value.splitlines())}
        encoded = [line.encode() for line in lines]
        hidden = [line for line in encoded if len(line) >= _SHORTEST]
        # The longest first, so that no value is masked in part.
        self._values = sorted(hidden, key=len, reverse=True)
        alternatives = b"|".join(re.escape(value) for value in self._values)
        self._pattern = re.compile(alternatives) if self._values else None

    def __bool__(self) -> bool:
        """True if there is anything to hide."""
        return bool(self._values)

    @property
    def longest(self) -> int:
        """Bytes of the longest value; 0 without one."""
        return len(self._values[0]) if self._values else 0

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where values stand in `data`: their first bytes, and those behind them."""
        if self._pattern is None:
            return []
        return [match.span() for match in self._pattern.finditer(data)]

    def hide(self, data: bytes) -> bytes:
        """`data` with asterisks in place of values; the length stays."""
        if self._pattern is None:
            return data
        return self._pattern.sub(lambda match: b"*" * len(match[0]), data)

    def hide_text(self, text: str) -> str:
        """`text` with asterisks in place of values."""
        return self.hide(text.encode()).decode() if self else text

    def decided(self, data: bytes) -> int:
        """How many bytes of unfinished output can be shown: what follows may be the
        beginning of a value, or of a longer one.
        """
        cut = len(data) - self._held(data)
        for first, last in self.spans(data):
            if first < cut < last:
                return first
        return cut

    def _held(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a value."""
        return max((_begun(value, data) for value in self._values), default=0)


def _begun(value: bytes, data: bytes) -> int:
    """The length of the longest beginning of `value` with which `data` ends."""
    position = max(len(data) - len(value) + 1, 0)
    while True:
        position = data.find(value[:1], position)
        if position < 0:
            return 0
        # Most candidates differ at once: values may be long, and a copy takes time.
        if value.startswith(data[position : position + _SHORTEST]) and value.startswith(
            data[position:]
        ):
            return len(data) - position
        position += 1


class MaskedStream:
    """Hides values in output that comes in parts."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def feed(self, part: bytes) -> bytes:
        """What can be shown now; the beginning of a value waits for the rest."""
        if not self._mask:
            return part
        data = self._held + part
        cut = self._mask.decided(data)
        self._held = data[cut:]
        return self._mask.hide(data[:cut])

    def finish(self) -> bytes:
        """What was held back when the output ended."""
        held = self._held
        self._held = b""
        return self._mask.hide(held)
