"""Parts of the paths of calls."""

from urllib.parse import quote

from gpuyard.domain.errors import InvalidInputError, is_text


def segment(text: str, safe: str = "") -> str:
    """A part of a path. InvalidInputError for what names nothing there."""
    if text.strip("./") == "" or not is_text(text):
        raise InvalidInputError.of(
            "NAME",
            f"{text!r} is the name of nothing",
            "give an id or a name; the listings show them",
        )
    return quote(text, safe=safe)
