"""Pools: keeps nodes ready at providers, as an extension of the controller.

It looks at each pool when a decision was made, when a call was answered, and when time
alone changes something. A look only reads memory and writes events; the calls to
providers follow from the rows and run beside it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpuyard.config.pools import PoolSettings
from gpuyard.controller.core import Core
from gpuyard.controller.joined_nodes import JoinedNodes
from gpuyard.controller.joining_door import InstanceDoor
from gpuyard.controller.pool_calls import REPEAT_S, LivePool, PoolCalls
from gpuyard.controller.pool_codes import PoolCodes
from gpuyard.controller.pool_facts import ModelNeeds, PoolFacts
from gpuyard.controller.pool_output import PoolOutput
from gpuyard.controller.pool_rows import PoolBook, PoolRow
from gpuyard.domain.errors import LedgerError, NotFoundError
from gpuyard.domain.events import Event
from gpuyard.domain.shape import Shape
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.pool_demand import waiting_for
from gpuyard.scheduler.pools import (
    PoolPlace,
    PoolPlan,
    PoolStage,
    WaitingWork,
    plan_pool,
)

# Decisions come by the thousand a second, looks do not.
LOOK_AGAIN_S = 0.5
# For so long after its last node, a pool asks for machines: one may come late, of a
# launch that was thought lost.
_LATE_S = 300.0


class Pools:
    """The pools of the settings, and nodes that earlier settings have left."""

    def __init__(
        self,
        core: Core,
        providers: Providers,
        joined_nodes: JoinedNodes,
        copy_path: Callable[[str], Path],
        door: InstanceDoor,
    ) -> None:
        self._core = core
        self._providers = providers
        self._joined_nodes = joined_nodes
        self.book = PoolBook(core)
        self._door = door
        self._codes = PoolCodes(core, joined_nodes, door)
        self._calls = PoolCalls(core, self.book, self._codes)
        self._facts = PoolFacts(core)
        self._output = PoolOutput(core, providers, copy_path, self._look_soon)
        self.by_name: dict[str, LivePool] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._is_looking = False
        # An alarm has come while it looked.
        self._looks_again = False
        self._drained: set[str] = set()
        self._needs: ModelNeeds | None = None

    # --- the extension ---

    def start(self) -> None:
        """Find the nodes in the ledger, and begin to look."""
        self.reload()
        for name, settings in self._core.settings.pools.items():
            self.by_name[name] = self._pool(name, settings)
        for row in self.book.rows.values():
            if row.pool not in self.by_name:
                left = PoolSettings(provider=row.provider)
                self.by_name[row.pool] = self._pool(row.pool, left)
                self.by_name[row.pool].is_configured = False
        for pool in self.by_name.values():
            self._show(pool, None)
        if self.by_name:
            self._core.listeners.append(self._heard)
            self._look_in(LOOK_AGAIN_S)

    def _pool(self, name: str, settings: PoolSettings) -> LivePool:
        provider = self._providers.get(settings.provider)
        if provider is None:
            problem = f"there is no provider {settings.provider}"
            return LivePool(name, settings, None, problem=problem)
        hands = provider.pool_hands(settings, self)
        problem = "" if hands else f"{settings.provider} keeps no nodes ready"
        return LivePool(name, settings, hands, problem=problem)

    def reload(self) -> None:
        """Read the nodes from the ledger again."""
        self.book.reload()
        self._output.reload(self.book.rows.values())
        for pool in self.by_name.values():
            self._show(pool, None)

    def before_deciding(self) -> None:
        """Look soon: what waits may have changed."""
        if self.by_name:
            self._look_in(LOOK_AGAIN_S)

    @property
    def idle(self) -> bool:
        """True when no node of a pool lives, or should."""
        wanted = any(pool.settings.min for pool in self.by_name.values())
        return not self.book.rows and not wanted

    async def close(self) -> None:
        """Look no more. The nodes stay: the next server finds them in the ledger."""
        if self._alarm:
            self._alarm.cancel()

    @property
    def installation(self) -> str:
        """See PoolOwner."""
        return self._door.installation

    def owns(self, owner: str) -> bool:
        """Whether a machine with this owner is that of a node of a pool."""
        return owner in self.book.rows

    def pool_of_owner(self, owner: str) -> str | None:
        """The pool whose node has the machine with this owner; None if none has."""
        row = self.book.rows.get(owner)
        return row.pool if row else None

    def know_models(self, needs: ModelNeeds) -> None:
        """Also grow for what waits in no queue of jobs, and let models that are loaded
        on a node and used by nobody not keep it.
        """
        self._needs = needs
        self._facts.models = needs

    def is_leaving(self, node_id: str) -> bool:
        """Whether a node of a pool ends with what it runs now."""
        return any(
            row.node_id == node_id and row.state is PoolStage.DRAINING
            for row in self.book.rows.values()
        )

    def pool_of(self, node_id: str) -> str | None:
        """The pool of a node; None if it is of none."""
        rows = self.book.rows.values()
        return next((row.pool for row in rows if row.node_id == node_id), None)

    def _heard(self, _: int, events: Sequence[Event]) -> None:
        if self.book.rows:
            self._facts.heard(events)
            self._output.heard(events, self._node_ids)

    def _node_ids(self) -> set[str]:
        """The nodes that have joined, also those that nobody has looked at since."""
        found: set[str] = set()
        for row in self.book.rows.values():
            node_id = row.node_id or self._codes.node_of(row)
            if node_id:
                found.add(node_id)
        return found

    # --- looking ---

    def _look_in(self, seconds: float) -> None:
        """Look in so many seconds, or earlier if that was said before."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._alarm and self._alarm_at <= at:
            return
        if self._alarm:
            self._alarm.cancel()
        self._alarm = loop.call_later(seconds, self._look_now)
        self._alarm_at = at

    def _look_soon(self) -> None:
        """Look as soon as nothing else is to be done."""
        if self.by_name and not self._core.is_stopping:
            self._look_in(0.0)

    def _look_now(self) -> None:
        self._alarm = None
        if self._core.is_stopping:
            return
        if self._is_looking:
            self._looks_again = True
            return
        self._is_looking = True
        self._core.spawn(self._look_and_wait(), "pools")

    async def _look_and_wait(self) -> None:
        next_s = LOOK_AGAIN_S
        try:
            next_s = self.look()
            await self._core.committed(own_only=True)
            self._call()
        except LedgerError:
            pass  # memory was read again
        finally:
            self._is_looking = False
        if self._looks_again:
            self._looks_again = False
            next_s = 0.0
        if next_s < math.inf:
            self._look_in(next_s)

    def look(self) -> float:
        """Note what has become of each node, and plan; in how many seconds to look
        again.
        """
        now = self._core.clock()
        served: set[Shape] = set()
        next_s = math.inf
        for pool in sorted(self.by_name.values(), key=_order):
            for row in self.book.of(pool.name):
                self._advance(pool, row, now)
            self._plan(pool, served, now)
            next_s = min(next_s, self._next_s(pool, now))
        return next_s

    def _next_s(self, pool: LivePool, now: float) -> float:
        """In how many seconds something may have changed that nobody tells of."""
        next_s = math.inf
        if pool.hands and self._has_news(pool):
            next_s = min(pool.hands.poll_s, REPEAT_S)
        wake_at = pool.plan.wake_at if pool.plan else None
        if wake_at is not None:
            next_s = min(next_s, max(wake_at - now, LOOK_AGAIN_S))
        return next_s

    def _has_news(self, pool: LivePool) -> bool:
        """Whether its provider may have something to tell."""
        if self.book.of(pool.name):
            pool.used_at = time.monotonic()
        return pool.size is None or time.monotonic() < pool.used_at + _LATE_S

    def _advance(self, pool: LivePool, row: PoolRow, now: float) -> None:
        """Note how far a node has come."""
        machine = pool.machines.get(row.id)
        if row.state is PoolStage.ENDING:
            if self._calls.has_ended(pool, row):
                self._calls.gone(row)
        elif machine and not machine.live and row.state is not PoolStage.ASKED:
            why = machine.why or f"{row.provider} has ended its machine"
            if row.state.comes:
                pool.failed(why, now)
            self._end(row, why)
        elif machine and machine.began_at and row.began_at is None:
            self.book.change(row.id, began_at=machine.began_at)
        elif row.state is PoolStage.BOOTING:
            self._note_joined(pool, row, now)

    def _note_joined(self, pool: LivePool, row: PoolRow, now: float) -> None:
        """Note a machine that has joined since, once its agent is connected."""
        node_id = self._codes.node_of(row)
        if not node_id or self._core.view.node(node_id).state != "online":
            return
        self.book.change(row.id, state=PoolStage.JOINED, node_id=node_id, joined_at=now)
        pool.came(now - (row.began_at or row.asked_at))

    def _plan(self, pool: LivePool, served: set[Shape], now: float) -> None:
        """Ask for nodes, drain and end them, as the pool needs now."""
        rows = self.book.of(pool.name)
        like = self._facts.like(pool, rows) if pool.is_configured else None
        found: dict[Shape, WaitingWork] = {}
        cudas: list[str] = []
        if like:
            view = self._core.view
            policy = self._core.policy
            wishes = self._needs.wishes() if self._needs else ()
            found = waiting_for(view, like, now, policy, served, wishes)
            cudas = self._facts.waiting_cudas(like)
        nodes = [self._facts.node(pool, row, cudas, now) for row in rows]
        pool.waiting = list(found.values())
        pool.plan = plan_pool(pool.limits, nodes, pool.waiting, now, pool.failures)
        if pool.plan.ask or any(row.state.comes for row in rows):
            served.update(found)
        useless = {node.id for node in nodes if node.sick and node.stage.comes}
        useless |= {
            row.id
            for row, node in zip(rows, nodes, strict=True)
            if node.sick and not self._facts.has_worked(row)
        }
        self._carry_out(pool, pool.plan, useless, now)
        self._show(pool, like)

    def _show(self, pool: LivePool, like: Node | None) -> None:
        """Let jobs be submitted that only a node of the pool could run."""
        view = self._core.view
        if not pool.is_configured or pool.hands is None:
            return
        why = pool.plan.why if pool.plan else ""
        most = pool.settings.max
        view.pools[pool.name] = PoolPlace(like, most, pool.problem or why)

    def _carry_out(
        self, pool: LivePool, plan: PoolPlan, useless: Set[str], now: float
    ) -> None:
        """`useless`: the sick nodes that have never run anything."""
        for row_id, why in (*plan.drain, *plan.end):
            # Another one may well be the same.
            if row_id in useless and self.book.rows[row_id].may_leave:
                pool.failed(why, now)
        for row_id, why in plan.drain:
            self.book.change(row_id, state=PoolStage.DRAINING, why=why)
        for row_id, why in plan.end:
            row = self.book.rows[row_id]
            if not self._output.is_awaited(row):
                self._end(row, why)
        if pool.hands and pool.size:
            for _ in range(plan.ask):
                name = pool.settings.provider
                self.book.add(PoolRow.new(pool.name, name, pool.size.name, now))

    def _end(self, row: PoolRow, why: str) -> None:
        self.book.change(row.id, state=PoolStage.ENDING, why=why or row.why)

    # --- what follows from the rows ---

    def _call(self) -> None:
        """Begin the calls that the rows ask for."""
        for row in list(self.book.rows.values()):
            if not self._calls.is_due(row.id):
                continue
            pool = self.by_name[row.pool]
            if row.state is PoolStage.ASKED:
                work = partial(self._calls.launch, pool, row)
                self._begin(work, f"launch-{row.name}")
            elif row.state is PoolStage.ENDING:
                work = partial(self._end_machine, pool, row)
                self._begin(work, f"end-{row.name}")
            elif row.state is PoolStage.DRAINING and row.id not in self._drained:
                self._drained.add(row.id)
                self._begin(partial(self._drain, row), f"drain-{row.name}")
        for pool in self.by_name.values():
            if self._has_news(pool) and self._calls.may_ask(pool):
                self._begin(partial(self._calls.ask, pool), f"machines-{pool.name}")

    def _begin(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        self._core.spawn(self._and_look(work), name)

    async def _and_look(self, work: Callable[[], Awaitable[None]]) -> None:
        await work()
        self._look_in(0.0)

    async def _drain(self, row: PoolRow) -> None:
        with suppress(NotFoundError):  # somebody has removed it
            await self._joined_nodes.drain(str(row.node_id))

    async def _end_machine(self, pool: LivePool, row: PoolRow) -> None:
        """Remove the node from the instance, so that its jobs go on elsewhere, and end
        its machine.
        """
        if row.node_id:
            with suppress(NotFoundError):  # somebody was faster
                await self._joined_nodes.remove(row.node_id)
        await self._calls.end(pool, row)


def _order(pool: LivePool) -> tuple[bool, str]:
    return (not pool.is_configured, pool.name)
