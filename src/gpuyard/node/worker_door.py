"""Where the workers of batches find the server on a machine that has joined it: at a
Unix socket of the agent, which passes on what they say over connections of its own.

A worker shows its own token; what it says is a line of JSON, and so is the answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from gpuyard.config.accounts import Accounts, make_passable, workers_socket
from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings
from gpuyard.config.sockets import listening_socket, peer_uid
from gpuyard.domain import wire, wire_frames
from gpuyard.node.link import ServerAddress, open_link, read_answer

_LONGEST_LINE = 1 << 20
# The worker waits longer: it asks again only when nobody works on its question.
_ANSWER_S = 50.0
_BACKLOG = 512
# Any job may connect, as often as it wants. A worker that is turned away asks again.
MOST_OF_ACCOUNT = 32
_MOST = 512
_MOST_ASKED = 32
FIRST_LINE_S = 5.0
_question: msgspec.json.Decoder[wire.TakeItem] = msgspec.json.Decoder(wire.TakeItem)


class WorkerDoor:
    """Listens at `path`. `server()` is the address of the server that the agent is
    linked with, None while it is linked with none. `for_accounts`: workers have
    accounts of their own.
    """

    def __init__(
        self,
        path: Path,
        server: Callable[[], ServerAddress | None],
        *,
        for_accounts: bool,
    ) -> None:
        self._path = path
        self._server = server
        self._for_accounts = for_accounts
        self._listener: asyncio.Server | None = None
        # How many connections are open, by the user at their other end.
        self._open = Counter[int]()
        self._asking = asyncio.Semaphore(_MOST_ASKED)

    async def open(self) -> None:
        """Listen for as long as this process lives; OSError."""
        if self._for_accounts:
            make_passable(self._path.parent)
        bound = listening_socket(self._path, _BACKLOG)
        if self._for_accounts:
            # Nobody is believed there without a token.
            self._path.chmod(0o666)
        self._listener = await asyncio.start_unix_server(
            self._serve, sock=bound, limit=_LONGEST_LINE
        )

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on one question. A worker that gets no answer asks again."""
        with closing(writer), suppress(OSError, EOFError, ValueError):
            uid = peer_uid(writer.get_extra_info("socket"))
            if not self._has_room(uid):
                return
            self._open[uid] += 1
            try:
                async with asyncio.timeout(_ANSWER_S):
                    answer = await self._answer(reader)
                    writer.write(answer)
                    await writer.drain()
            finally:
                self._open[uid] -= 1

    def _has_room(self, uid: int) -> bool:
        most = MOST_OF_ACCOUNT if self._for_accounts else _MOST
        return self._open[uid] < most and self._open.total() < _MOST

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(FIRST_LINE_S):
            question = _question.decode(await _line(reader))
        async with self._asking:
            return await self._ask(question)

    async def _ask(self, question: wire.TakeItem) -> bytes:
        """The answer of the server, as a line of JSON; OSError, EOFError, ValueError if
        there is none.
        """
        address = self._server()
        if address is None:
            raise ConnectionError("no server is connected")
        async with open_link(address) as (reader, writer):
            writer.write(wire_frames.encode(question))
            given = await read_answer(reader, wire.ItemGiven, _ANSWER_S)
        if given.refused:
            return msgspec.json.encode({"refused": given.refused}) + b"\n"
        return b'{"item": ' + (given.item or b"null") + b"}\n"


def worker_door(
    home: Home, settings: NodeSettings, server: Callable[[], ServerAddress | None]
) -> WorkerDoor:
    """The door of a machine that has joined."""
    for_accounts = Accounts.of(settings) is not None
    path = home.worker_socket
    if for_accounts:
        path = workers_socket(settings.accounts_folder, home.root)
    return WorkerDoor(path, server, for_accounts=for_accounts)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """What a worker says; ValueError if it is too long."""
    try:
        return await reader.readuntil()
    except asyncio.LimitOverrunError as error:
        raise ValueError(str(error)) from None
