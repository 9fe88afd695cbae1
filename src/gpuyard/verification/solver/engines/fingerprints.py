"""Fingerprints of answers: for each token, the likeliest tokens at its place and their
log-probabilities.

A file of fingerprints has, for each prompt in sorted order: how many tokens its answer
has (2 bytes), whether the answer is whole (1 byte), and 34 bytes for each token: its
id, the ids of the five likeliest tokens, the likeliest first (4 bytes each), and their
log-probabilities (floats of 2 bytes). All is little-endian.
"""

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

TOP = 5
# Stands for the token that sampling gives where an engine cannot tell it.
UNKNOWN = 0xFFFFFFFF
HEADER = struct.Struct("<H?")
TOKEN = struct.Struct(f"<I{TOP}I{TOP}e")
_LARGEST_FLOAT = 65504.0
_MOST_BYTES = 1 << 24


@dataclass
class TokenPrint:
    """One place of an answer: a token, and the likeliest ones (see the module)."""

    token: int
    ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass
class PrintedAnswer:
    """An answer and its fingerprint.

    `whole`: it ends with a token that ends answers, or is as long as it may be.
    """

    text: str
    prints: list[TokenPrint] = field(default_factory=list[TokenPrint])
    whole: bool = True


def pack(answers: Iterable[PrintedAnswer]) -> bytes:
    """A file of fingerprints, of answers in the order of their sorted prompts."""
    packed = bytearray()
    for answer in answers:
        packed += HEADER.pack(len(answer.prints), answer.whole)
        for one in answer.prints:
            logprobs = [max(value, -_LARGEST_FLOAT) for value in one.logprobs]
            packed += TOKEN.pack(one.token, *one.ids, *logprobs)
    return bytes(packed)


def pack_tokens(rows: Iterable[Sequence[int]]) -> str:
    """The tokens of answers, as an order has them."""
    packed = b"".join(struct.pack(f"<H{len(row)}I", len(row), *row) for row in rows)
    return base64.b64encode(zlib.compress(packed)).decode()


def unpack_tokens(text: str) -> list[list[int]]:
    """The opposite of `pack_tokens`; ValueError."""
    try:
        packed = zlib.decompressobj().decompress(
            base64.b64decode(text, validate=True), _MOST_BYTES
        )
        rows: list[list[int]] = []
        place = 0
        while place < len(packed):
            (count,) = struct.unpack_from("<H", packed, place)
            rows.append(list(struct.unpack_from(f"<{count}I", packed, place + 2)))
            place += 2 + 4 * count
    except (zlib.error, struct.error) as error:
        raise ValueError(f"no packed tokens ({error})") from error
    return rows
