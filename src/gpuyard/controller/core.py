"""The core: one view, one writer. Every event passes `emit`, which folds it into memory and queues it
for the ledger; nothing is done or answered on its strength before `committed`.

When a commit fails, memory has run ahead of the truth: it is thrown away and read anew from the ledger.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from gpuyard.billing.meter import Price, list_price
from gpuyard.config.settings import Settings
from gpuyard.controller import moves
from gpuyard.controller.intake import Prepared
from gpuyard.controller.recall import know_parents, recall
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.scripts import Scripts
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import JobState
from gpuyard.domain.tiers import Tiers
from gpuyard.ledger.ledger import Ledger
from gpuyard.scheduler.claims import claims
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.fitting import provider_for
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import PREEMPTED, REVOKED, observe
from gpuyard.scheduler.policy import Order, Policy
from gpuyard.scheduler.view import Action, Fail, LiveAttempt, Preempt, Recall, View

# After a commit failed (a full disk), decisions are tried again this often.
RETRY_WRITE_S = 1.0
# So many events are folded in a few milliseconds.
SLICE = 100
log = structlog.get_logger(__name__)
Listener = Callable[[int, Sequence[Event]], None]


class Core:
    """Memory and its ledger. `on_intents` is called with the attempt ids that a decision intends to start.

    `before_deciding` lets the residents have their say, so that a model that is wanted comes before what waits.
    """

    def __init__(self, ledger: Ledger, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self.tiers = Tiers(settings.tiers)
        self.scripts = Scripts(settings.scripts)
        self.images = settings.images.read()
        self.policy = Policy(
            order=Order(settings.scheduler.policy),
            ageing_s=settings.scheduler.ageing_s,
            retry_base_s=settings.scheduler.retry_base_s,
            retry_max_s=settings.scheduler.retry_max_s,
            strategy=Strategy(settings.scheduler.strategy),
        )
        self.ledger = ledger
        self.queries = ledger.queries
        self.writer = ledger.writer(self._publish, self._ran_ahead)
        self.listeners: list[Listener] = []
        # By job, of those that run: how far each is, and its process on its node.
        self.progress: dict[str, Mapping[str, Any]] = {}
        self.pids: dict[str, int] = {}
        # Jobs on their way to the ledger, by idempotency key.
        self.submitting: dict[str, Prepared] = {}
        self.on_intents: Callable[[list[str]], None] = lambda _: None
        self.on_preempt: Callable[[LiveAttempt], None] = lambda _: None
        self.before_deciding: Callable[[], None] = lambda: None
        self.on_reload: Callable[[], None] = lambda: None
        self.epoch = 0
        # Providers whose nodes let attempts wait that were sent ahead, and call each by the id we gave it.
        self.claiming: frozenset[str] = frozenset()
        self._prices: dict[tuple[Shape, str | None], Price] = {}
        self.view = View()
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, epoch: int | None = None) -> None:
        """Read the ledger, mark every node silent until its agent says Hello, and begin to write.

        `epoch` is that of the lease this server holds, and fences the writer; None counts a new one.
        """
        self.epoch = self.queries.next_epoch() if epoch is None else epoch
        self.writer.epoch = epoch
        self.reload()
        self.writer.start()
        now = self.clock()
        silent = {"state": "silent", "reason": "its agent has not linked up since the server started"}
        self.emit([Event(EventKind.NODE_CHANGED, now, (Change(Table.NODES, node, silent),))
                   for node in self.view.nodes])  # fmt: skip

    async def close(self) -> None:
        """Finish what is under way and write what is waiting."""
        if self._alarm:
            self._alarm.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.close()

    # --- events ---

    def emit(self, events: Sequence[Event], *, linger: bool = False) -> None:
        """Fold `events` into memory and queue them for the next commit."""
        for event in events:
            observe(self.view, event)
        if events:
            self.writer.put(events, linger=linger)

    def emit_many(self, events: Sequence[Event]) -> asyncio.Future[None]:
        """Queue `events` as one put, and fold them in slices between which others have their turn; done when folded.

        `events` is read twice and never kept whole in memory, so it may make them as it is read.
        """
        self.writer.put(events)
        return asyncio.shield(self.spawn(self._fold(events), "fold"))

    async def _fold(self, events: Sequence[Event]) -> None:
        view = self.view
        for start in range(0, len(events), SLICE):
            if self.view is not view:
                return  # read anew from the ledger meanwhile
            for event in events[start : start + SLICE]:
                observe(view, event)
            await asyncio.sleep(0)

    def committed(self, *, linger: bool = False, mine: bool = False) -> asyncio.Future[None]:
        """Done when everything emitted so far is in the ledger; with `mine`, what this task emitted."""
        return self.writer.written(linger=linger, mine=mine)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` beside; a fault in it is logged, never lost."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("background work failed", task=task.get_name(), exc_info=task.exception())

    def _publish(self, first_seq: int, events: Sequence[Event]) -> None:
        for listener in self.listeners:
            listener(first_seq, events)

    @staticmethod
    def read_spec(body: Mapping[str, Any]) -> JobSpec:
        """A spec as the ledger holds it; it was validated before it came there."""
        return JobSpec.model_validate(body)

    # --- decisions ---

    def schedule(self) -> None:
        """Decide until nothing more follows: intents are emitted and handed to `on_intents`."""
        self.view.heed_trust(self.clock())
        self.before_deciding()
        intents: list[str] = []
        while True:
            decision = decide(self.view, self.clock(), self.policy)
            if not decision.actions:
                break
            intents += [new for action in decision.actions if (new := self._act(action))]
        for job, node_id in claims(self.view, self.clock(), self.policy, self.claiming):
            intents.append(self._intend(job, (Placement(node_id, ahead=True),)))
        self._set_alarm(decision.wake_at)
        if intents:
            self.on_intents(intents)

    def _act(self, action: Action) -> str | None:
        job = self.view.jobs[action.job_id]
        if isinstance(action, Preempt):
            attempt = self.view.attempts[action.attempt_id]
            self.emit([moves.ending(attempt, PREEMPTED, self.clock(), action.for_job)])
            self.on_preempt(attempt)
            return None
        if isinstance(action, Recall):
            attempt = self.view.attempts[action.attempt_id]
            self.emit([moves.ending(attempt, REVOKED, self.clock())])
            self.on_preempt(attempt)
            return None
        if isinstance(action, Fail):
            self.emit([moves.settled(job, JobState.FAILED, action.reason, self.clock(), action.message)])
            return None
        return self._intend(job, action.placements)

    def _intend(self, job: LiveJob, placements: tuple[Placement, ...]) -> str:
        attempt_id = new_id("attempt")
        offer = self.view.engines.offer(placements[0].offer)
        provider = offer.provider if offer else provider_for(self.view.nodes[placements[0].node_id], job.shape)
        price = self._offered(offer, job) if offer else self.listed(job)
        intent = moves.intended(job, attempt_id, token=job.attempts + 1, epoch=self.epoch, provider=provider,
                                reference=attempt_id if provider in self.claiming else None,
                                placements=placements, price=price, now=self.clock())  # fmt: skip
        self.emit([intent])
        return attempt_id

    def listed(self, job: LiveJob) -> Price:
        """The list price on our own nodes."""
        price = self._prices.get((job.shape, job.tier))
        if price is None:
            billing = self.settings.billing
            price = list_price(job.shape, job.tier, self.tiers, billing.local_price_per_hour, billing.currency)
            self._prices[job.shape, job.tier] = price
        return price

    def _offered(self, offer: Offer, job: LiveJob) -> Price:
        """The offer's own price for as many nodes, or the list price where it names none."""
        per_hour = offer.hourly(job.shape.gpus, job.shape.cpus, job.shape.nodes)
        if per_hour is None:
            return self.listed(job)
        return Price(per_hour, offer.currency, "offer", job.tier or "")

    def _set_alarm(self, wake_at: float | None) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None
        if wake_at is not None:
            delay = max(wake_at - self.clock(), 0.0)
            self._alarm = asyncio.get_running_loop().call_later(delay, self.schedule)

    # --- memory ---

    def reload(self) -> None:
        """Forget everything and recall what is live in the ledger."""
        known = self.view.engines
        self.view, self.submitting = recall(self.queries, self.clock()), {}
        self.view.meet(known.known, known.containers)
        self.view.engines.history = known.history

    def know_parents(self, job_ids: set[str]) -> bool:
        """Tell the view of parents that are already over; False while the end of one is on its way to the ledger."""
        return know_parents(self.view, self.queries, job_ids)

    def _ran_ahead(self) -> None:
        log.warning("a commit failed: memory is read anew from the ledger")
        self.reload()
        self.on_reload()
        self._set_alarm(self.clock() + RETRY_WRITE_S)
