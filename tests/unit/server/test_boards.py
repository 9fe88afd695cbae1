"""TensorBoards on demand: which one whoever asks gets, and the port at which it listens."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fastapi import Request

from gpuyard.controller.logs import LogPart
from gpuyard.controller.users import Identity
from gpuyard.domain.errors import ClosedPortError, RefusedError, TooManyRequestsError
from gpuyard.domain.jobs import Job
from gpuyard.domain.users import Role
from gpuyard.server.app_state import AppState
from gpuyard.server.permissions import IDENTITY_KEY
from gpuyard.server.tools.boards import MOST_BOARDS, listening_board
from gpuyard.server.tools.links import link_to

pytestmark = pytest.mark.anyio

LISTENS = b"TensorBoard listens on port 7\n"


class Instance:
    """Keeps the boards that are submitted. Nobody answers at the port of those in
    `ended`, and at that of those in `crowded` too many look.
    """

    def __init__(self, said: Sequence[bytes] = (LISTENS,)) -> None:
        self.said = said
        self.boards: list[dict[str, Any]] = []
        self.ended: set[str] = set()
        self.crowded: set[str] = set()
        self.readers: set[int] = set()
        queries = SimpleNamespace(
            jobs_page=lambda **_: list(reversed(self.boards)),
            submitters_of=lambda ids: dict.fromkeys(self._read_ids(ids), "ann"),
            projects_of_jobs=lambda ids: dict.fromkeys(self._read_ids(ids)),
        )
        sessions = SimpleNamespace(code=lambda *_: "code")
        door = SimpleNamespace(sessions=sessions, link=lambda *_: "http://tools")
        controller = SimpleNamespace(
            access=SimpleNamespace(may=lambda *_: True, rights_of=lambda _: None),
            projects=SimpleNamespace(by_name={}),
            requests=SimpleNamespace(accept=self._accept),
            streams=SimpleNamespace(node_of=lambda *_: "node_1", open=self._open),
            logs=SimpleNamespace(read=self._read),
        )
        self.app_state = SimpleNamespace(
            queries=queries,
            controller=controller,
            tools_door=door,
            home=None,
            settings=SimpleNamespace(workspaces=SimpleNamespace(root=lambda _: Path())),
            board_turns=defaultdict[str | None, asyncio.Lock](asyncio.Lock),
        )

    def _read_ids(self, ids: Sequence[str]) -> Sequence[str]:
        self.readers.add(threading.get_ident())
        return ids

    async def _accept(self, raw: list[msgspec.Raw], **_: object) -> list[Any]:
        await asyncio.to_thread(int)  # others look meanwhile which boards there are
        (body,) = [msgspec.json.decode(one) for one in raw]
        board = {"id": f"job_{len(self.boards)}", "labels": body["labels"]}
        self.boards.append(board)
        return [SimpleNamespace(**board)]

    @asynccontextmanager
    async def _open(self, job_id: str, _: int) -> AsyncGenerator[None]:
        if job_id in self.ended:
            raise ClosedPortError("Nothing answers at the port on the node.")
        if job_id in self.crowded:
            raise TooManyRequestsError("64 connections are open.")
        yield

    async def _read(self, *_: object, **__: object) -> AsyncGenerator[LogPart]:
        for data in self.said:
            yield LogPart(1, 0, data)

    def request(self) -> Request:
        """One of ann's."""
        return Request({"type": "http", IDENTITY_KEY: Identity("ann", Role.MEMBER)})

    async def ask(self, job_id: str = "job_a") -> tuple[str, int]:
        """The board over a job, and its port."""
        job = SimpleNamespace(
            id=job_id,
            name="a",
            user="ann",
            project=None,
            spec={"workdir": "/work"},
            started_at=1.0,
            ended_at=2.0,
            provider="local",
            code=None,
        )
        app_state = cast(AppState, self.app_state)
        return await listening_board(app_state, [cast(Job, job)], self.request())


async def test_tabs_that_ask_at_the_same_time_get_one_board() -> None:
    instance = Instance()
    got = await asyncio.gather(*[instance.ask() for _ in range(MOST_BOARDS)])
    assert set(got) == {("job_0", 7)}


async def test_nobody_starts_too_many_at_once() -> None:
    instance = Instance()
    asked = [instance.ask(f"job_{name}") for name in range(MOST_BOARDS + 1)]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in done].count(RefusedError) == 1
    assert len(instance.boards) == MOST_BOARDS


async def test_a_board_that_has_ended_is_not_handed_out_again() -> None:
    """The ledger has it as running, until its agent reports the end."""
    instance = Instance()
    assert await instance.ask() == ("job_0", 7)
    instance.ended = {"job_0"}
    assert await instance.ask() == ("job_1", 7)
    assert await instance.ask() == ("job_1", 7)


async def test_a_board_at_which_many_look_is_handed_out() -> None:
    instance = Instance()
    assert await instance.ask() == ("job_0", 7)
    instance.crowded = {"job_0"}
    assert await instance.ask() == ("job_0", 7)


async def test_a_board_that_says_much_is_found_again() -> None:
    noise = b"W0101 a warning\n" * 1000
    instance = Instance([b"a" + noise + LISTENS[:9], LISTENS[9:] + noise])
    assert await instance.ask() == ("job_0", 7)


async def test_the_ledger_is_read_beside_the_event_loop() -> None:
    """Others wait for that."""
    instance = Instance()
    job_id, port = await instance.ask()
    app_state = cast(AppState, instance.app_state)
    await link_to(app_state, job_id, port, instance.request(), shown=["job_a"])
    assert instance.readers
    assert threading.get_ident() not in instance.readers
