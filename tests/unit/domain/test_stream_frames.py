"""Frames of streams, however the bytes are cut."""

import struct

import pytest

from gpuyard.domain import stream_frames as frames

SAID: list[frames.FromClient] = [
    frames.RunCommand(["cat", "-"], "xterm", 40, 160),
    frames.Input(bytes(range(256))),
    frames.Resize(50, 100),
    frames.Input(b""),
    frames.InputEnd(),
]


@pytest.mark.parametrize("size", [1, 3, 64, 10_000])
def test_frames_are_read_however_they_arrive(size: int) -> None:
    content = b"".join(map(frames.encode, SAID))
    reader = frames.client_frames()
    read: list[frames.FromClient] = []
    for start in range(0, len(content), size):
        read += reader.feed(content[start : start + size])
    assert read == SAID


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">I", (1 << 20) + 1),
        struct.pack(">I", 2) + b"\xc1\xc1",
        frames.encode(frames.Exited(0)),
        frames.encode(frames.RunCommand([])),
        frames.encode(frames.Resize(1 << 16, 1)),
    ],
    ids=["too long", "no msgpack", "the agent's own", "no command", "too large a size"],
)
def test_what_is_no_frame_of_a_client_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        frames.client_frames().feed(content)
