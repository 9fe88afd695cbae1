"""Messages between server and agent as bytes: msgpack, in frames of a 4-byte big-endian
length and a body.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuyard.domain.wire import (
    Ended,
    FromAgent,
    NumberedReport,
    ProgressSeen,
    ToAgent,
)
from gpuyard.domain.wire_types import LARGEST, Count, Time, Whole

MAX_FRAME = 64 * 1024 * 1024
# From a machine that has joined: whatever an agent says is much smaller.
MAX_FRAME_OF_OTHERS = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size
_DEEPEST = 8

_encoder = msgspec.msgpack.Encoder()
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)


def encode(message: FromAgent | ToAgent) -> bytes:
    """One frame: length and body."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


@dataclass(frozen=True, slots=True)
class UnreadableReport:
    """What stands for a numbered report that says what none may say: the `fault`."""

    seq: int
    fault: str


class _AnyReport(msgspec.Struct, frozen=True, tag="Report"):
    """A numbered report, whatever it says."""

    seq: Count


class _PlainEnd(msgspec.Struct, frozen=True, tag="Ended"):
    """The fields of `Ended` that tell how an attempt ended."""

    attempt_id: str
    at: Time
    started_at: Time | None
    exit_code: Whole | None = None
    signal: Whole | None = None
    reason: str = ""
    stopped: str = ""


class _EndReport(msgspec.Struct, frozen=True, tag="Report"):
    seq: Count
    body: _PlainEnd


_any_report: msgspec.msgpack.Decoder[_AnyReport] = msgspec.msgpack.Decoder(_AnyReport)
_end_report: msgspec.msgpack.Decoder[_EndReport] = msgspec.msgpack.Decoder(_EndReport)


def decode_from_agent(body: bytes) -> FromAgent | UnreadableReport:
    """The message in a body that the server received; ValueError when there is none.

    A report that says what none may say is an `UnreadableReport`. Only the end of an
    attempt always counts, without what cannot be read of it.
    """
    try:
        return decode_readable(body)
    except ValueError as error:
        with suppress(msgspec.MsgspecError):
            return _end_in(body)
        with suppress(msgspec.MsgspecError):
            return UnreadableReport(_any_report.decode(body).seq, str(error))
        raise


def decode_readable(body: bytes) -> FromAgent:
    """The message in a body; ValueError also for a report that says what none may."""
    message = _from_agent.decode(body)
    if isinstance(message, NumberedReport) and isinstance(message.body, ProgressSeen):
        _refuse_complex(message.body.progress, 0)
    return message


def _end_in(body: bytes) -> NumberedReport:
    """The report of an end, with its plain fields alone; MsgspecError."""
    report = _end_report.decode(body)
    return NumberedReport(report.seq, Ended(**msgspec.structs.asdict(report.body)))


def _refuse_complex(value: Any, depth: int) -> None:
    """ValueError when JSON, or the ledger, could not hold the value."""
    if depth > _DEEPEST:
        raise ValueError(f"progress is nested deeper than {_DEEPEST}")
    match value:
        case bool() | str() | float() | None:
            return
        case int():
            if abs(value) <= LARGEST:
                return
        case list():
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                _refuse_complex(item, depth + 1)
            return
        case dict():
            for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                if not isinstance(key, str):
                    raise ValueError("progress has a key that is no text")
                _refuse_complex(item, depth + 1)
            return
        case _:
            pass
    raise ValueError("progress has a value that JSON cannot hold")


def decode_to_agent(body: bytes) -> ToAgent:
    """The message in a body that the agent received; ValueError when there is none."""
    return _to_agent.decode(body)


def frame_length(header: bytes | bytearray, most: int = MAX_FRAME) -> int:
    """The length of the body from a 4-byte header; ValueError when it is more than
    `most`, so that garbage cannot exhaust memory.
    """
    (length,) = _LENGTH.unpack(header)
    if length > most:
        raise ValueError(
            f"a frame of {length} bytes is more than {most}; the peer does not"
            " speak our protocol"
        )
    return int(length)


def take_frames(received: bytearray, most: int = MAX_FRAME) -> list[bytes]:
    """Take the bodies of all frames that have arrived completely out of `received`;
    ValueError when one is larger than `most`.
    """
    frames: list[bytes] = []
    start = 0
    while len(received) - start >= _LENGTH.size:
        body = start + _LENGTH.size
        end = body + frame_length(received[start:body], most)
        if end > len(received):
            break
        frames.append(bytes(received[body:end]))
        start = end
    del received[:start]
    return frames
