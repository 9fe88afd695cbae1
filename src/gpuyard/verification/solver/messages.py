"""How messages are written: JSON objects, one a line; files are zipped and split."""

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]


def line(message: Message) -> bytes:
    """A message with its line end."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def canonical(document: Any) -> bytes:
    """Write a document as canonical JSON: sorted keys, no spaces, UTF-8.

    Half a surrogate pair, which UTF-8 cannot represent, becomes a question mark.
    """
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return text.encode("utf-8", errors="replace")


def pieces(kind: str, data: bytes, size: int) -> Iterator[Message]:
    """Split a zipped file into messages of at most `size` bytes each."""
    zipped = gzip.compress(data, 6, mtime=0)
    cuts = range(0, len(zipped), size)
    for part, start in enumerate(cuts):
        piece = base64.b64encode(zipped[start : start + size]).decode()
        yield {"type": kind, "part": part, "of": len(cuts), "data": piece}
