"""The server's process in the simulation: the real controller on a real ledger, started
and killed like a process.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.controller.run_clock import RunClock
from gpuyard.domain.errors import GpuyardError
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers.agent import AgentProvider
from gpuyard.resource_manager.manager import ResourceManager
from tests.simulation.loop import Life
from tests.simulation.pipe import Line

if TYPE_CHECKING:
    from tests.simulation.world import World

SETTINGS = {
    "scheduler": {"retry_base_s": 2.0, "retry_max_s": 16.0},
    "node": {"keep_checkpoints": 2},
    "billing": {"local_price_per_hour": "3600"},
}
Ask = Callable[[Controller], Awaitable[Any]]


class UnansweredError(ConnectionError):
    """The server gave no answer; nobody knows whether it did what was asked."""


class Server:
    """One run of the server, from its start to its kill."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.life = Life("server")
        self.ready = False
        self.controller: Controller | None = None
        self.manager: ResourceManager | None = None
        self._connections: list[sqlite3.Connection] = []
        self._asked: dict[asyncio.Future[Any], None] = {}
        self.life.spawn(world.loop, self._run())

    async def _run(self) -> None:
        world = self.world
        try:
            self.ledger = Ledger.open(world.ledger_path)
            engine = self.ledger.engine
            # A pool outlives whoever dropped it while a connection is out, so it must
            # not hold on to the whole world.
            me = ref(self)
            taken = self._connections
            sa.event.listen(engine, "checkout", lambda raw, *_: taken.append(raw))
            sa.event.listen(
                engine, "commit", lambda _: (server := me()) and server.committing()
            )
            self.controller = Controller(
                self.ledger,
                Settings.model_validate({**SETTINGS, **world.settings}),
                lambda epoch: {"agent": AgentProvider({"epoch": epoch})},
                world.blobs,
                Home(world.ledger_path.parent / "home"),
                self._no_news,
                world.wall,
            )
            if world.fleet:
                self.manager = ResourceManager(self.controller)
            loop = world.loop
            self.controller.core.run_clock = RunClock(lambda: loop.now)
            # How long a commit really takes is no part of the simulation.
            self.controller.core.writer.quick_s = world.quick_s
            self.controller.core.listeners.append(self._published)
            await self.controller.start()
            self.ready = True
            world.note(f"server of epoch {self.controller.core.epoch} is ready")
        except (GpuyardError, SQLAlchemyError) as error:
            world.note(f"server did not start: {error}")
            world.loop.call_soon(world.kill_server, context=world.life.context)
        except Exception as error:  # noqa: BLE001 - told to whom it concerns
            world.promises.broken(f"the server cannot start: {error!r}")

    def committing(self) -> None:
        """A COMMIT is about to be tried."""
        self.world.commits += 1
        if self.world.disk_fails():
            self.world.note("disk full")
            raise OperationalError(
                "COMMIT", {}, sqlite3.OperationalError("database or disk is full")
            )

    def _published(self, first_seq: int, events: Any) -> None:
        for number, event in enumerate(events, first_seq):
            self.world.note(
                "journal"
                f" {number} {event.kind.value} {event.job_id or ''} {dict(event.info)}"
            )

    async def _no_news(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def accept(self, line: Line) -> None:
        """An agent has dialled in."""
        assert self.controller
        provider = self.controller.providers["agent"]
        assert isinstance(provider, AgentProvider)
        end: Any = line.server
        self.life.spawn(self.world.loop, provider.serve(end.reader, end))

    async def ask(self, request: Ask) -> Any:
        """What a person's request is answered; UnansweredError when the connection
        broke first.
        """
        world = self.world
        if not self.ready:
            raise UnansweredError
        answer: asyncio.Future[Any] = world.loop.create_future()
        self._asked[answer] = None
        self.life.spawn(world.loop, self._carry_out(request, answer))
        return await answer

    async def _carry_out(self, request: Ask, answer: asyncio.Future[Any]) -> None:
        world = self.world
        assert self.controller
        try:
            result = await request(self.controller)
            fault = None
        except GpuyardError as error:
            result = None
            fault = error
        except Exception as error:  # noqa: BLE001 - told to whom it concerns
            world.promises.broken(f"a request failed with {error!r}")
            result = None
            fault = UnansweredError()
        if world.stormy and world.dice.random() < world.weather.reply_lost:
            world.note("reply lost")
            fault = UnansweredError()
        world.loop.call_later(
            world.delay(),
            self._answer,
            answer,
            result,
            fault,
            context=world.life.context,
        )

    def _answer(
        self, answer: asyncio.Future[Any], result: Any, fault: Exception | None
    ) -> None:
        self._asked.pop(answer, None)
        if answer.done():
            return
        if fault is None:
            answer.set_result(result)
        else:
            answer.set_exception(fault)

    def kill(self) -> None:
        """`kill -9`: what was not committed is gone, and whoever waits for an answer
        gets none.
        """
        self.world.loop.kill(self.life)
        self.ready = False
        for connection in self._connections:
            connection.rollback()
        for answer in self._asked:
            self.world.loop.call_later(
                self.world.delay(), self._answer, answer, None, UnansweredError()
            )
        self._asked = {}
