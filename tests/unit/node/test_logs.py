"""Parts of a log, while the program goes on to write."""

import asyncio
import struct
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gpuyard.domain import wire
from gpuyard.node.logs import LogSender, LogWatch

pytestmark = pytest.mark.anyio
LINE = b"on and on\n"


class TalkersLink:
    """A link to the server. Whenever it is free, the program has written on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.sent = asyncio.Event()
        self.frame = b""

    async def drain(self) -> None:
        with self._log.open("ab") as file:
            file.write(LINE * 100)

    def write(self, frame: bytes) -> None:
        self.frame = frame
        self.sent.set()


async def test_the_last_lines_are_no_more_than_were_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(LINE * 10)
    link = TalkersLink(log)
    sender = LogSender(cast(Any, link), LogWatch())
    sender.answer(wire.ReadLog(1, "attempt_1", -1, 1 << 16, 3), log, None)
    async with asyncio.timeout(30):
        await link.sent.wait()
    (length,) = struct.unpack(">I", link.frame[:4])
    part = msgspec.msgpack.decode(link.frame[4 : 4 + length], type=wire.LogPart)
    assert (part.offset, part.data) == (70, LINE * 3)
