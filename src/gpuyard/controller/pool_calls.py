"""What a pool asks of its provider, and what it has heard: sizes, machines, failures.

The row of a node is committed before the first call, and says what to do. So each call
can be repeated by the next server, whatever the last one lived to see.
"""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpuyard.config.pools import PoolSettings
from gpuyard.controller.core import Core
from gpuyard.controller.pool_codes import PoolCodes
from gpuyard.controller.pool_rows import PoolBook, PoolRow
from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.providers.base import TRANSIENT
from gpuyard.providers.pool_hands import OWNER_PREFIX, NodeSize, PoolHands, PoolMachine
from gpuyard.scheduler.pools import (
    NONE_FAILED,
    Failures,
    PoolLimits,
    PoolPlan,
    PoolStage,
    WaitingWork,
)

# A call that came to nothing is repeated after this time; a machine that is to end and
# lives is ended again.
REPEAT_S = 10.0
_USUAL_BOOT_S = 60.0
_REMEMBERED_BOOTS = 8
_SIZE_AGAIN_S = 60.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LivePool:
    """A pool as this server knows it. `hands` is None where its provider has none.

    `machines` are those of the newest answer, by their owner; it was asked for at
    `answered_at`, and the newest question, answered or not, was put at `asked_at`
    (monotonic seconds). `used_at`: when it last had a node, or was new. `problem`:
    why the provider cannot be asked, for people. `boots`: how many seconds the last
    nodes took to come.
    """

    name: str
    settings: PoolSettings
    hands: PoolHands | None
    is_configured: bool = True
    size: NodeSize | None = None
    machines: dict[str, PoolMachine] = field(default_factory=dict[str, PoolMachine])
    asked_at: float = -math.inf
    answered_at: float = -math.inf
    used_at: float = field(default_factory=time.monotonic)
    size_asked_at: float = -math.inf
    is_asking: bool = False
    problem: str = ""
    failures: Failures = NONE_FAILED
    boots: deque[float] = field(
        default_factory=lambda: deque[float](maxlen=_REMEMBERED_BOOTS)
    )
    waiting: list[WaitingWork] = field(default_factory=list[WaitingWork])
    plan: PoolPlan | None = None

    @property
    def limits(self) -> PoolLimits:
        """What the plan keeps to. A pool that is no longer in the settings may have no
        node.
        """
        least = self.settings.min if self.is_configured else 0
        most = self.settings.max if self.is_configured else 0
        return PoolLimits(least, most, self.settings.idle, self.boot_s)

    @property
    def boot_s(self) -> float:
        """How long a new node is expected to take to its first job."""
        if not self.boots:
            return _USUAL_BOOT_S
        return sum(self.boots) / len(self.boots)

    def failed(self, why: str, now: float) -> None:
        """A node could not be had, or was of no use."""
        self.failures = Failures(self.failures.count + 1, now, why)

    def came(self, seconds: float) -> None:
        """A node has come, after so long."""
        self.boots.append(seconds)
        self.failures = NONE_FAILED


class PoolCalls:
    """Makes the calls of all pools. `on_news` is called after each answer."""

    def __init__(self, core: Core, book: PoolBook, codes: PoolCodes) -> None:
        self._core = core
        self._book = book
        self._codes = codes
        # Rows with a call under way, and when the last call of a row was answered or
        # failed (monotonic seconds).
        self.busy: set[str] = set()
        self._called_at: dict[str, float] = {}
        # When the provider has last been asked to end the machine of a row.
        self._end_asked_at: dict[str, float] = {}

    def is_due(self, row_id: str) -> bool:
        """Whether a call for this row may be made now."""
        called_at = self._called_at.get(row_id, -math.inf)
        return row_id not in self.busy and time.monotonic() >= called_at + REPEAT_S

    def may_ask(self, pool: LivePool) -> bool:
        """Whether the provider may be asked for its machines now."""
        hands = pool.hands
        if hands is None or pool.is_asking:
            return False
        return time.monotonic() >= pool.asked_at + hands.poll_s

    async def ask(self, pool: LivePool) -> None:
        """Ask for the size of a node, now and then, and for the machines."""
        hands = pool.hands
        if hands is None:
            return
        now = time.monotonic()
        pool.is_asking = True
        try:
            # Machines live and end whether there are others to be had or not.
            no_size = await self._ask_size(pool, hands, now)
            no_machines = await self._ask_machines(pool, hands, now)
        finally:
            pool.asked_at = now
            pool.is_asking = False
        problem = no_machines or no_size
        if problem and pool.problem != problem:
            log.warning("a pool cannot ask", pool=pool.name, why=problem)
        pool.problem = problem

    async def _ask_size(self, pool: LivePool, hands: PoolHands, now: float) -> str:
        """Why it is not known, for people; empty if it is."""
        if pool.size is not None and now < pool.size_asked_at + _SIZE_AGAIN_S:
            return ""
        try:
            pool.size = await hands.size()
        except ProviderError as error:
            return str(error)
        pool.size_asked_at = now
        return ""

    async def _ask_machines(self, pool: LivePool, hands: PoolHands, now: float) -> str:
        """Why they are not known, for people; empty if they are."""
        try:
            found = await hands.machines()
            pool.machines = {machine.owner: machine for machine in found}
            pool.answered_at = now
            await self._end_strays(pool, hands)
        except ProviderError as error:
            return str(error)
        return ""

    async def _end_strays(self, pool: LivePool, hands: PoolHands) -> None:
        """End the machines of pools whose rows have gone: a call that was thought lost
        has arrived after all.
        """
        for owner, machine in pool.machines.items():
            if (
                machine.live
                and owner.startswith(OWNER_PREFIX)
                and owner not in self._book.rows
            ):
                log.warning("a machine of a pool has no row", machine=machine.reference)
                await hands.end(machine.reference)

    async def launch(self, pool: LivePool, row: PoolRow) -> None:
        """Start the machine of a node that is asked for."""
        if pool.hands is None:
            return
        self.busy.add(row.id)
        try:
            order = await self._codes.order(row)
            machine = await pool.hands.launch(order)
        except GpuyardError as error:
            await self._launch_failed(pool, row, error)
        else:
            self._launched(row, machine)
        finally:
            self._over(row.id)
        await self._core.committed(own_only=True)

    async def _launch_failed(
        self, pool: LivePool, row: PoolRow, error: GpuyardError
    ) -> None:
        pool.problem = str(error)
        code = error.error_code if isinstance(error, ProviderError) else ""
        if code in TRANSIENT:
            return  # nobody knows whether it is there: the call is repeated
        now = self._core.clock()
        pool.failed(str(error), now)
        self._book.change(row.id, state=PoolStage.GONE, ended_at=now, why=str(error))
        # Not before: a server that goes on from there would start a machine that could
        # not join.
        await self._codes.withdraw(row)

    def _launched(self, row: PoolRow, machine: PoolMachine) -> None:
        now = self._book.rows.get(row.id)
        if now is None:
            return
        # Meanwhile the pool may have found that it needs the node no longer.
        is_wanted = now.state is PoolStage.ASKED
        self._book.change(
            row.id,
            state=PoolStage.BOOTING if is_wanted else now.state,
            **_told(machine),
        )
        self._called_at.pop(row.id, None)

    async def end(self, pool: LivePool, row: PoolRow) -> None:
        """End the machine of a node. Its row goes once the provider says that it does
        not run.
        """
        if pool.hands is None:
            return
        self.busy.add(row.id)
        try:
            await self._codes.withdraw(row)
            reference = row.reference
            if not reference and (found := await pool.hands.find(row.id)):
                reference = found.reference
                self._book.change(row.id, **_told(found))
            if reference:
                await pool.hands.end(reference)
            else:
                self.gone(row)
        except GpuyardError as error:
            pool.problem = str(error)
        finally:
            self._over(row.id)
            self._end_asked_at[row.id] = time.monotonic()
        await self._core.committed(own_only=True)

    def has_ended(self, pool: LivePool, row: PoolRow) -> bool:
        """Whether the provider was asked to end the machine, and since then says that
        it does not run.
        """
        asked_at = self._end_asked_at.get(row.id)
        if asked_at is None or row.id in self.busy or pool.answered_at <= asked_at:
            return False
        machine = pool.machines.get(row.id)
        return machine is None or not machine.live

    def gone(self, row: PoolRow, why: str = "") -> None:
        """The machine of a node runs no more."""
        self._called_at.pop(row.id, None)
        self._end_asked_at.pop(row.id, None)
        self._book.change(
            row.id,
            state=PoolStage.GONE,
            ended_at=self._core.clock(),
            why=why or row.why,
        )

    def _over(self, row_id: str) -> None:
        self.busy.discard(row_id)
        self._called_at[row_id] = time.monotonic()


def _told(machine: PoolMachine) -> dict[str, Any]:
    """What its provider says of a machine, as fields of a row."""
    price = machine.price_per_hour
    return {
        "reference": machine.reference,
        "began_at": machine.began_at,
        "price_per_hour": None if price is None else str(price),
        "currency": machine.currency,
    }
