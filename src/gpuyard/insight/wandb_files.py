"""Reads scalars from the file that W&B keeps of each run, online or not.

The file is a row of blocks of 32 KB, as in LevelDB's log. A block holds pieces: a check
sum, a length, a kind and the content; the pieces of one record follow each other. A
record is a message of Protocol Buffers, and the values in it are JSON.
"""

import json
import re
import struct
from collections.abc import Iterator
from math import isfinite
from typing import Any

from gpuyard.insight.event_files import (
    LATEST,
    MOST_STEPS,
    Scalar,
    fields,
    printable_tag,
)

PREFIX = "wandb/"
"""What the names of the curves begin with that come from these files."""
RUN_FILE = re.compile(r"run-[\w-]{1,64}\.wandb")

_BLOCK = 1 << 15
# What a file begins with.
_MAGIC = b":W&B"
_FILE_HEADER = 7
_PIECE = struct.Struct("<IHB")
_WHOLE = 1
_FIRST = 2
_MIDDLE = 3
_LAST = 4
# A longer record holds no scalars that a person would look at.
_LONGEST = 1 << 18

# Numbers of the fields that are read; see wandb_internal.proto.
_HISTORY = 2
_ITEM = 1
_STEP = 2
_NUMBER = 1
_KEY = 1
_NESTED_KEY = 2
_VALUE = 16
_TIME = "_timestamp"


def wandb_scalars_in(data: bytes, offset: int) -> tuple[list[Scalar], int]:
    """The finite scalars of the whole records with which `data` begins, which is at
    `offset` in its file, and how many bytes these take.

    ValueError if this is no such file, or a record is too long.
    """
    at = 0
    if offset == 0:
        if len(data) < _FILE_HEADER:
            return [], 0
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it is no file of W&B")
        at = _FILE_HEADER
    found: list[Scalar] = []
    record = b""
    done = at
    for kind, content, end in _pieces(data, at, offset):
        is_begun = kind in (_WHOLE, _FIRST)
        record = content if is_begun else record + content
        if len(record) > _LONGEST:
            raise ValueError("a record is too long")
        if kind in (_WHOLE, _LAST):
            found += _scalars_of(record)
            done = end
    return found, done


def _pieces(data: bytes, at: int, offset: int) -> Iterator[tuple[int, bytes, int]]:
    """The whole pieces from `at` on: kind, content, and where each ends."""
    while True:
        left = _BLOCK - (offset + at) % _BLOCK
        if left < _PIECE.size:
            at += left
        if at + _PIECE.size > len(data):
            return
        (_, length, kind) = _PIECE.unpack_from(data, at)
        begin = at + _PIECE.size
        at = begin + length
        if at > len(data):
            return
        if not _WHOLE <= kind <= _LAST:
            raise ValueError(f"a piece is of kind {kind}")
        yield kind, data[begin:at], at


def _scalars_of(record: bytes) -> list[Scalar]:
    """The scalars of one record; none if it is no such message."""
    values: dict[str, float] = {}
    step: int | None = None
    try:
        for history in _messages(record, _HISTORY):
            values |= _values_of(history)
            for message in _messages(history, _STEP):
                numbers = [n for key, n in fields(message) if key == _NUMBER]
                step = next((n for n in numbers if isinstance(n, int)), 0)
    except (ValueError, IndexError, OverflowError, RecursionError):
        return []
    at = values.get(_TIME)
    if at is None or not 0 < at < LATEST or not 0 <= (step or 0) <= MOST_STEPS:
        return []
    return [
        Scalar(key, step or 0, value, at)
        for key, value in values.items()
        if not key.startswith("_")
    ]


def _values_of(history: bytes) -> dict[str, float]:
    """The numbers by their keys, those in tables as `train.loss`."""
    values: dict[str, float] = {}
    for item in _messages(history, _ITEM):
        keys: list[str] = []
        value: Any = None
        for number, content in fields(item):
            if not isinstance(content, bytes):
                continue
            if number in (_KEY, _NESTED_KEY):
                keys.append(content.decode(errors="replace"))
            elif number == _VALUE:
                value = json.loads(content)
        tag = printable_tag(".".join(keys))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if tag and is_number and isfinite(value):
            values[tag] = float(value)
    return values


def _messages(message: bytes, wanted: int) -> Iterator[bytes]:
    for number, content in fields(message):
        if number == wanted and isinstance(content, bytes):
            yield content
