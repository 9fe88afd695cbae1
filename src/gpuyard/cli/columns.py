"""How wide text is on a terminal, and its parts that fit a column."""

from unicodedata import combining, east_asian_width


def width_of(text: str) -> int:
    """The columns that a text takes on a terminal: ideographs take two."""
    if text.isascii():
        return len(text)
    return sum(_width(letter) for letter in text)


def cut(text: str, width: int) -> list[str]:
    """The text in parts that are at most `width` wide, between words if possible."""
    parts: list[str] = []
    while width_of(text) > width:
        end = _fitting(text, width)
        space = text.rfind(" ", 1, end + 1)
        if space > 0 and text[:space].strip():
            end = space
        parts.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*parts, text]


def _fitting(text: str, width: int) -> int:
    """How many letters of the text fit, at least one."""
    taken = 0
    for number, letter in enumerate(text):
        taken += _width(letter)
        if taken > width:
            return max(number, 1)
    return len(text)


def _width(letter: str) -> int:
    return 1 + (east_asian_width(letter) in "WF") - bool(combining(letter))
