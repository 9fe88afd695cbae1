"""The agents of rented machines: starts the attempt of a machine once that has joined,
and hears of its end.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import structlog

from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import ProviderError, RefusedError
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.reasons import Reason
from gpuyard.providers.agent import AgentProvider
from gpuyard.providers.instances.container import in_container
from gpuyard.providers.instances.renting_instance import RentingInstance
from gpuyard.providers.placing import place

_TRY_AGAIN_S = 2.0
# Between two looks whether an end is in the ledger.
_LOOK_S = 0.2
log = structlog.get_logger(__name__)


class RentedAgents:
    """A Sink for the agents of one provider's machines. `on_news` is called when the
    state of an attempt may have changed.
    """

    def __init__(
        self, provider: str, nodes: RentingInstance, on_news: Callable[[], None]
    ) -> None:
        self._provider = provider
        self._nodes = nodes
        self._on_news = on_news
        self.link = AgentProvider({"epoch": nodes.epoch})
        # By attempt.
        self.ends: dict[str, wire.Ended] = {}
        self.faults: dict[str, str] = {}
        self.started: dict[str, float] = {}
        self.gpus: dict[str, tuple[str, ...]] = {}
        self._sent: set[str] = set()
        # By node: since when it is not connected (monotonic seconds).
        self._away_since: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def start(self) -> None:
        """Let agents connect."""
        await self.link.start(self)

    async def close(self) -> None:
        """Drop the links. Machines and attempts go on."""
        self._is_closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()

    def forget(self, attempt_id: str) -> None:
        """The attempt is over, and its end is recorded."""
        self.ends.pop(attempt_id, None)
        self.faults.pop(attempt_id, None)
        self.started.pop(attempt_id, None)
        self.gpus.pop(attempt_id, None)
        self._sent.discard(attempt_id)
        node_id = self._nodes.node_of(attempt_id)
        self._away_since.pop(node_id, None)

    # --- what is known ---

    def is_connected(self, node_id: str) -> bool:
        """Whether the agent of the node is connected."""
        return node_id in self.link.agents.links

    def away_s(self, node_id: str, known_s: float) -> float:
        """For how long the agent has not been connected; this server has known of its
        machine for `known_s` seconds.
        """
        if self.is_connected(node_id):
            return 0.0
        since = self._away_since.get(node_id)
        return known_s if since is None else time.monotonic() - since

    def may_run(self, attempt_id: str) -> bool:
        """Whether the agent has been told to start the attempt."""
        return attempt_id in self._sent or self._nodes.has_started(attempt_id)

    # --- Sink ---

    async def node_joined(self, provider: str, hello: wire.Hello) -> wire.Welcome:
        """See Sink. `provider` is that of the link."""
        attempt_id = self._nodes.attempt_on(hello.node_id)
        if not attempt_id:
            raise RefusedError(f"Nothing is to run on {hello.name} any more.")
        about = f"rented from {self._provider}"
        welcome = await self._nodes.joined(self._provider, hello, about)
        self._away_since.pop(hello.node_id, None)
        self._spawn(self._after_hello(attempt_id, hello))
        self._on_news()
        return welcome

    def has_certificate(self, node_id: str) -> bool:
        """See Sink: all of them have."""
        return True

    async def node_left(self, node_id: str) -> None:
        """See Sink."""
        self._away_since[node_id] = time.monotonic()
        await self._nodes.left(node_id)

    async def node_claimed(self, node_id: str, address: str) -> None:
        """See Sink."""
        await self._nodes.claimed(node_id, address)

    async def reported(
        self, node_id: str, bodies: Sequence[wire.NumberedReport]
    ) -> None:
        """See Sink. The report of an end is acknowledged once the end is recorded:
        until then the agent must repeat it to the next server.
        """
        attempt_id = self._nodes.attempt_on(node_id)
        end: wire.Ended | None = None
        others: list[wire.NumberedReport] = []
        for report in bodies:
            body = report.body
            if isinstance(body, wire.Ended):
                end = body if body.attempt_id == attempt_id else end
            elif isinstance(body, wire.InterruptionSeen):
                await self.stop_soon(attempt_id, Reason.PREEMPTED)
            elif not isinstance(body, wire.GpusSeen):
                others.append(report)
                self._note_start(body)
        if others:
            await self._nodes.reported(node_id, others)
        if end is not None:
            self.ends.setdefault(attempt_id, self._nodes.believable(end))
        self._on_news()
        if end is not None:
            await self._until_recorded(attempt_id)

    def _note_start(self, body: Any) -> None:
        if isinstance(body, wire.Started):
            self.started.setdefault(body.attempt_id, body.at)

    async def _until_recorded(self, attempt_id: str) -> None:
        while not self._nodes.is_recorded(attempt_id):
            if self._is_closing:
                raise ProviderError(
                    "The server stops before the end is recorded.",
                    self._provider,
                    "NOT_CONNECTED",
                )
            await asyncio.sleep(_LOOK_S)

    # --- the start of an attempt ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="rented-machine")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _after_hello(self, attempt_id: str, hello: wire.Hello) -> None:
        """Start the attempt, unless it runs or has run there."""
        held = {each.attempt_id for each in hello.attempts}
        if attempt_id in held:
            self._sent.add(attempt_id)
            return
        if self._nodes.has_started(attempt_id):
            await self._end_if_lost(attempt_id, hello.node_id)
            return
        while self._nodes.is_wanted(attempt_id) and self.is_connected(hello.node_id):
            try:
                await self._start_attempt(attempt_id, hello)
                return
            except ProviderError as error:
                log.warning(
                    "an attempt cannot start on its machine yet",
                    provider=self._provider,
                    attempt=attempt_id,
                    error=str(error),
                )
            await asyncio.sleep(_TRY_AGAIN_S)

    async def _end_if_lost(self, attempt_id: str, node_id: str) -> None:
        """A Hello may come late, from an agent that was killed since: what it does not
        name is lost only if the agent of now does not have it either.
        """
        while self.is_connected(node_id):
            try:
                is_there = await self.link.has_attempt(node_id, attempt_id)
            except ProviderError:
                await asyncio.sleep(_TRY_AGAIN_S)
                continue
            if not is_there:
                self._note_lost(attempt_id)
            return

    def _note_lost(self, attempt_id: str) -> None:
        """The machine does not have what it had started: it was rebooted."""
        message = "its machine no longer knows this attempt; it was rebooted"
        end = wire.Ended(
            attempt_id,
            time.time(),
            self.started.get(attempt_id),
            reason=Reason.ATTEMPT_LOST,
            message=message,
        )
        self.ends.setdefault(attempt_id, end)
        self._on_news()

    async def _start_attempt(self, attempt_id: str, hello: wire.Hello) -> None:
        order = await self._nodes.order(attempt_id)
        if order is None:
            return
        gpu_uuids = _gpus_for(order, hello)
        if gpu_uuids is None:
            has = len([gpu for gpu in hello.gpus if not gpu.problem])
            why = hello.problem or "the driver may be missing"
            wanted = _words_of_gpus(order.gpu_spec)
            self.faults[attempt_id] = f"it shows {has} GPUs, and not {wanted}; {why}"
            self._on_news()
            return
        await self._nodes.place(attempt_id, hello.node_id, gpu_uuids)
        if not self._nodes.is_wanted(attempt_id):
            return
        placed = replace(order, node_id=hello.node_id, gpu_uuids=tuple(gpu_uuids))
        self._sent.add(attempt_id)
        self.gpus[attempt_id] = tuple(gpu_uuids)
        try:
            await self.link.submit_attempt(in_container(placed))
        except ProviderError:
            self._sent.discard(attempt_id)
            raise

    async def stop(self, attempt_id: str, reason: str, *, checkpoint: bool) -> None:
        """Stop the attempt on its machine; ProviderError while that is away."""
        node_id = self._nodes.node_of(attempt_id)
        await self.link.stop_attempt(node_id, attempt_id, reason, checkpoint=checkpoint)

    async def stop_soon(self, attempt_id: str, reason: str) -> bool:
        """Let the attempt save its work and end; whether its machine could be told."""
        try:
            await self.stop(attempt_id, reason, checkpoint=True)
        except ProviderError:
            return False
        return True


def _only_gpus(need: GpuSpec) -> GpuSpec:
    """Without cores and memory: a machine always shows a little less than its type."""
    return need.model_copy(update={"vcpus": None, "ram_gb": None})


def _words_of_gpus(need: GpuSpec) -> str:
    kind = f" {need.gpu_type}" if need.gpu_type else ""
    memory = f" of {need.memory_gb:g} GB" if need.memory_gb else ""
    return f"{need.gpu_count}{kind}{memory}"


def _gpus_for(order: AttemptOrder, hello: wire.Hello) -> list[str] | None:
    """The GPUs of its machine that the attempt gets; None if they are not there."""
    found = place(_only_gpus(order.gpu_spec), [hello], frozenset())
    return None if found is None else found[1]
