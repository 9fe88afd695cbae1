"""What goes through a stream between a client and an attempt, in both directions:
typed, in msgpack, in frames of a 4-byte big-endian length and a body.

A stream carries a command that runs beside the attempt's program (`RunCommand` comes
first), input for that program, or one connection to a port. The server between them
passes bytes on and reads none.

The client has at most `WINDOW` bytes of input under way: the agent says with `Taken`
what has arrived where it belongs. So nobody on the way ever stops to read from the
client, and its end is noticed at once, even if the command reads nothing. Output needs
no such credit: whoever cannot pass it on stops to read it.
"""

import struct
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

PART = 1 << 15
"""The most bytes of data in one frame."""
WINDOW = 1 << 18
_MAX_FRAME = 1 << 20
_LENGTH = struct.Struct(">I")
T = TypeVar("T")
# The kernel keeps the size of a terminal in 16 bits.
_Size = Annotated[int, Meta(ge=0, le=65535)]


class _Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


# --- client to agent ---


class RunCommand(_Frame, frozen=True, tag="RunCommand"):
    """Run this command, on a terminal if `terminal` names the kind (`TERM`), else with
    pipes.
    """

    command: Annotated[list[str], Meta(min_length=1)]
    terminal: str = ""
    rows: _Size = 0
    columns: _Size = 0


class Input(_Frame, frozen=True, tag="Input"):
    """Bytes for its standard input, for that of the program, or for the port."""

    data: bytes


class InputEnd(_Frame, frozen=True, tag="InputEnd"):
    """No more Input follows. The program's own standard input ends with it for all."""


class Resize(_Frame, frozen=True, tag="Resize"):
    """The terminal has another size now."""

    rows: _Size
    columns: _Size


# --- agent to client ---


class Taken(_Frame, frozen=True, tag="Taken"):
    """So many bytes of Input have been written where they belong, or thrown away."""

    count: int


class Output(_Frame, frozen=True, tag="Output"):
    """Bytes of its standard output, of the terminal, or of the port."""

    data: bytes


class ErrorOutput(_Frame, frozen=True, tag="ErrorOutput"):
    """Bytes of its standard error."""

    data: bytes


class OutputEnd(_Frame, frozen=True, tag="OutputEnd"):
    """No more Output follows from the port."""


class Exited(_Frame, frozen=True, tag="Exited"):
    """The command has ended: its exit code, 128 + n after signal n. The last frame.

    `with_job`: it was ended because the attempt was over.
    """

    code: int
    with_job: bool = False


class NotStarted(_Frame, frozen=True, tag="NotStarted"):
    """The command was not started; a reason for programs and one for people. The last
    frame.
    """

    reason: str
    message: str


class InputOverCause(StrEnum):
    """Why a program takes no more input: somebody has ended it, the program has closed
    its side, or the attempt is over.
    """

    ENDED = "ended"
    CLOSED = "closed"
    ATTEMPT_OVER = "attempt_over"


class InputOver(_Frame, frozen=True, tag="InputOver"):
    """The program takes no more input. The last frame."""

    cause: InputOverCause


FromClient = RunCommand | Input | InputEnd | Resize
FromAgent = Taken | Output | ErrorOutput | OutputEnd | Exited | NotStarted | InputOver
_encoder = msgspec.msgpack.Encoder()


def encode(frame: FromClient | FromAgent) -> bytes:
    """One frame: length and body."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[T]):
    """Cuts a stream of bytes into frames of the types `T`."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[T]") -> None:
        self._decoder = decoder
        self._received = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """The frames that are complete now; ValueError for what is none."""
        self._received += data
        frames: list[T] = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > _MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes is over {_MAX_FRAME}")
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            frames.append(self._decode(bytes(self._received[_LENGTH.size : end])))
            del self._received[:end]
        return frames

    def _decode(self, body: bytes) -> T:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a frame of ours: {error}") from None


def client_frames() -> "FrameReader[FromClient]":
    """Reads what a client says."""
    return FrameReader(msgspec.msgpack.Decoder(FromClient))


def agent_frames() -> "FrameReader[FromAgent]":
    """Reads what an agent says."""
    return FrameReader(msgspec.msgpack.Decoder(FromAgent))
