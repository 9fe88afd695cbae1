"""How messages are written: JSON objects, one a line; files as canonical JSON, zipped and cut into pieces."""

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]


def line(message: Message) -> bytes:
    """A message with its end of line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def canonical(document: Any) -> bytes:
    """The one way to write a document as JSON: keys sorted, no spaces, UTF-8.

    Half a surrogate pair, which no UTF-8 can hold, becomes a question mark.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", errors="replace")


def pieces(kind: str, data: bytes, size: int) -> Iterator[Message]:
    """A file as messages of `kind`, each with at most `size` bytes of the zipped file."""
    zipped = gzip.compress(data, 6, mtime=0)
    cuts = range(0, len(zipped), size)
    for part, start in enumerate(cuts):
        piece = base64.b64encode(zipped[start : start + size]).decode()
        yield {"type": kind, "part": part, "of": len(cuts), "data": piece}
