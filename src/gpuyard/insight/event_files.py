"""Reads scalars from event files, as TensorBoard shows them.

A file is a row of records: the length of an event, a check sum of that, the event, and
a check sum of that. An event is a message of Protocol Buffers.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import PurePosixPath

PREFIX = "tensorboard/"
"""What the names of the curves begin with that come from event files."""
EVENT_FILE = re.compile(
    r"events\.out\.tfevents\.(?P<begun>\d{9,12})\.(?:.+\.(?P<pid>\d{1,8})\.\d+)?"
)
"""The name of an event file: when it was begun (UTC seconds) and, in those of PyTorch
and TensorFlow, the id of the process that writes it."""

_HEADER = struct.Struct("<QI")
_FOOTER = 4
# An event with scalars is much smaller: one with pictures or sounds is passed over.
_LONGEST = 1 << 18
_LONGEST_TAG = 200
LATEST = 2**33  # a time in UTC seconds beyond which a clock is wrong
MOST_STEPS = 2**53
# Written by the plugin for hyper-parameters: no scalars of the training.
_HYPER_PARAMETERS = "_hparams_/"

# Numbers of the fields that are read; see event.proto and summary.proto of TensorFlow.
_TIME = 1
_STEP = 2
_SUMMARY = 5
_VALUE = 1
_TAG = 1
_SIMPLE_VALUE = 2
_TENSOR = 8
_TYPE = 1
_SHAPE = 2
_CONTENT = 4
_FLOATS = 5
_DOUBLES = 6
_FLOAT_TYPE = 1
_DOUBLE_TYPE = 2

Field = tuple[int, int | bytes]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of a tag. `at`: when it was written, in UTC seconds."""

    tag: str
    step: int
    value: float
    at: float


def scalars_in(data: bytes) -> tuple[list[Scalar], int]:
    """The finite scalars of the whole records with which `data` begins, and how many
    bytes these take: more than `data` has if the last one is passed over.

    ValueError if this is no row of records.
    """
    found: list[Scalar] = []
    at = 0
    while at + _HEADER.size <= len(data):
        (length, check) = _HEADER.unpack_from(data, at)
        if _check_sum(data[at : at + 8]) != check:
            raise ValueError(f"no record begins at byte {at}")
        begin = at + _HEADER.size
        end = begin + length
        is_long = length > _LONGEST
        if end + _FOOTER > len(data) and not is_long:
            break
        if not is_long:
            found += _scalars_of(data[begin:end])
        at = end + _FOOTER
    return found, at


class CurveNames:
    """Names the curves of files that a job logs to: `prefix` and the tag, with as much
    of the folder of its file as tells it from others.

    Libraries put the parts of one run into folders, such as `train` and `validation`,
    and the lines of one picture into folders below that of the run.
    """

    _PARTS = frozenset(
        {"train", "training", "val", "valid", "validation", "eval", "test"}
    )

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self._folders: set[PurePosixPath] = set()
        self._owners: dict[str, PurePosixPath] = {}

    def add_folder(self, folder: str) -> None:
        """An event file lies in `folder`, which is relative to that of the job."""
        self._folders.add(PurePosixPath(folder))

    def name(self, folder: str, tag: str) -> str:
        """What a tag in a file in `folder` is called."""
        place = PurePosixPath(folder)
        for words in (self._below_run(place), place.name, str(place)):
            name = self._prefix + "/".join(word for word in (words, tag) if word)
            if self._owners.setdefault(name, place) == place:
                return name
        return f"{self._prefix}{place}/{tag}"

    def _below_run(self, place: PurePosixPath) -> str:
        for above in place.parents:
            if above in self._folders:
                return str(place.relative_to(above))
        return place.name if place.name in self._PARTS else ""


def _scalars_of(event: bytes) -> Iterator[Scalar]:
    """The scalars of one event; none if it is no such message."""
    at = 0.0
    step = 0
    summaries: list[bytes] = []
    try:
        for number, content in fields(event):
            if number == _TIME and isinstance(content, bytes):
                (at,) = struct.unpack("<d", content)
            elif number == _STEP and isinstance(content, int):
                step = content
            elif number == _SUMMARY and isinstance(content, bytes):
                summaries.append(content)
        if not 0 <= step <= MOST_STEPS or not 0 < at < LATEST:
            return
        for summary in summaries:
            for number, content in fields(summary):
                if number == _VALUE and isinstance(content, bytes):
                    yield from _scalar_of(content, step, at)
    except (ValueError, IndexError, struct.error):
        return


def _scalar_of(message: bytes, step: int, at: float) -> Iterator[Scalar]:
    tag = ""
    value: float | None = None
    for number, content in fields(message):
        if not isinstance(content, bytes):
            continue
        if number == _TAG:
            tag = content[: 4 * _LONGEST_TAG].decode(errors="replace")
        elif number == _SIMPLE_VALUE:
            (value,) = struct.unpack("<f", content)
        elif number == _TENSOR:
            value = _tensor_value(content)
    tag = printable_tag(tag)
    if value is None or not isfinite(value) or not tag:
        return
    if not tag.startswith(_HYPER_PARAMETERS):
        yield Scalar(tag, step, value, at)


def printable_tag(tag: str) -> str:
    """The tag, as far as it may be long; empty if nobody could read it."""
    return tag[:_LONGEST_TAG] if tag.isprintable() else ""


def _tensor_value(tensor: bytes) -> float | None:
    """The number of a tensor without dimensions."""
    kind = 0
    raw = b""
    for number, content in fields(tensor):
        if number == _TYPE and isinstance(content, int):
            kind = content
        elif number == _SHAPE and content:
            return None
        elif number in (_CONTENT, _FLOATS, _DOUBLES) and isinstance(content, bytes):
            raw = content
    form = {_FLOAT_TYPE: "<f", _DOUBLE_TYPE: "<d"}.get(kind)
    if form is None or len(raw) != struct.calcsize(form):
        return None
    value: float = struct.unpack(form, raw)[0]
    return value


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message: number and content, which is a number for a varint and
    bytes for all others. ValueError or IndexError if it is none.
    """
    at = 0
    while at < len(message):
        (key, at) = _varint(message, at)
        kind = key & 7
        if kind == 0:
            (number, at) = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == 2:
            (length, at) = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("a field of a kind that nobody writes")
        if at + length > len(message):
            raise ValueError("a field is cut")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")


def _check_sum(data: bytes) -> int:
    """CRC-32C of a few bytes, masked as in these files."""
    table = _crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc_table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table
