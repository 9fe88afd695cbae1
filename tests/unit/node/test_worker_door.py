"""The door of workers, with programs behind it that are none."""

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from gpuyard.domain import wire
from gpuyard.node import worker_door
from gpuyard.node.worker_door import WorkerDoor

QUESTION = msgspec.json.encode(wire.TakeItem("batch_1", "attempt_1", "token")) + b"\n"


class Door:
    """One that no server is behind; `asked` counts the questions that came through."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "workers.sock"
        self.asked = 0
        self.door = WorkerDoor(self.path, self._server, for_accounts=True)

    def _server(self) -> None:
        self.asked += 1

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.path)

    async def ask(self) -> bytes:
        reader, writer = await self.connect()
        said = b""
        # Whoever is turned away may find the question unread.
        with suppress(ConnectionError):
            writer.write(QUESTION)
            said = await reader.read()
        writer.close()
        return said


@pytest.fixture(autouse=True)
def any_folder_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_: Path) -> None: ...

    monkeypatch.setattr(worker_door, "make_passable", take)


def test_an_account_has_so_many_connections_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_door, "MOST_OF_ACCOUNT", 2)

    async def work() -> None:
        door = Door(tmp_path)
        await door.door.open()
        (_, first) = await door.connect()
        (_, second) = await door.connect()
        assert await door.ask() == b""
        assert not door.asked
        first.close()
        while not door.asked:
            await door.ask()
        second.close()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_who_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_door, "FIRST_LINE_S", 0.05)

    async def work() -> None:
        door = Door(tmp_path)
        await door.door.open()
        reader, writer = await door.connect()
        assert await reader.read() == b""
        writer.close()

    asyncio.run(asyncio.wait_for(work(), 30))
