"""Texts of nodes and programs, as people may see them in a terminal."""

_MOST_CHARACTERS = 200  # they may send anything


def printable(words: str) -> str:
    """The beginning of a text of others, without what a terminal would obey."""
    return "".join(c for c in words[:_MOST_CHARACTERS] if c.isprintable())
