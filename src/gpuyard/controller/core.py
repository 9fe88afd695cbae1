"""The core: it holds the view and the writer. `emit` folds each event into the view and
queues it for the ledger; nobody acts on an event or answers before it is committed.

When a commit fails, the view is ahead of the ledger, so it is dropped and read again.
"""

import asyncio
import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import replace
from typing import Any

import structlog

from gpuyard.billing.meter import SHARE, Price, list_price
from gpuyard.config.settings import SchedulerSettings, Settings
from gpuyard.controller import transitions
from gpuyard.controller.gpu_kind import gpu_kind
from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.recovery import add_ended_parents, rebuild_view
from gpuyard.controller.run_clock import RunClock
from gpuyard.controller.shares import new_usage, read_past_usage
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.price_parts import by_name, sources_by_name
from gpuyard.domain.reasons import Reason
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.scripts import Scripts
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.spec_values import STORED
from gpuyard.domain.states import JobState
from gpuyard.domain.tiers import Tiers
from gpuyard.ledger.ledger import Ledger
from gpuyard.scheduler.actions import Action, Fail, Preempt, Start, Withdraw
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.budgets import BudgetTable
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.fitting import provider_for
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import REMOVED
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.prefetch import plan_prefetches
from gpuyard.scheduler.view import View

# After a failed commit (a full disk), the next decision follows after this time.
RETRY_WRITE_S = 1.0
# Long work on jobs lets other tasks run after this many: some milliseconds where all
# jobs differ. A request needs several turns of the event loop.
SLICE = 25
# So many new jobs are folded into the view at once, before the next decision.
FOLDED_AT_ONCE = 100
log = structlog.get_logger(__name__)
Listener = Callable[[int, Sequence[Event]], None]
CheckWorkspaces = Callable[[Iterable[str]], Awaitable[None]]


def _policy_of(settings: SchedulerSettings) -> Policy:
    return Policy(
        order=QueueOrder(settings.policy),
        ageing_s=settings.ageing_s,
        retry_base_s=settings.retry_base_s,
        retry_max_s=settings.retry_max_s,
        reservation_notice_s=settings.reservation_notice,
        strategy=Strategy(settings.strategy),
        spot_attempts=settings.spot_attempts,
    )


class Core:
    """The view and its ledger.

    `on_intents` is called with the ids of the attempts that a decision wants to start,
    `on_ending` with each attempt that a decision ends, `on_reload` after the view was
    read again. `before_deciding` is called before each decision, so that a model that
    is needed comes before waiting jobs. `refuse_when_full` raises DiskFullError while
    the disk is too full for new jobs, and `check_workspaces` RefusedError for jobs with
    a workspace that is too full (given by its key).
    """

    def __init__(
        self, ledger: Ledger, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.tiers = Tiers(settings.tiers)
        boot_times = settings.resource_manager.boot_times
        self.scripts = Scripts(settings.scripts, boot_times)
        self.images = settings.images.read()
        self.policy = _policy_of(settings.scheduler)
        self.ledger = ledger
        self.queries = ledger.queries
        self.writer = ledger.writer(self._publish, self._commit_failed)
        self.listeners: list[Listener] = []
        # The progress of running jobs, and their process ids on their nodes, by job.
        self.progress: dict[str, Mapping[str, Any]] = {}
        self.pids: dict[str, int] = {}
        self.run_clock = RunClock()
        # Jobs that are not committed yet, by idempotency key.
        self.submitting: dict[str, PreparedJob] = {}
        self.on_intents: Callable[[list[str]], None] = lambda _: None
        self.on_ending: Callable[[LiveAttempt], None] = lambda _: None
        self.before_deciding: Callable[[], None] = lambda: None
        self.on_reload: Callable[[], None] = lambda: None
        self.refuse_when_full: Callable[[], None] = lambda: None
        self.check_workspaces: CheckWorkspaces | None = None
        # The budgets of a new view.
        self.budget_table: Callable[[], BudgetTable] = BudgetTable
        # In how many seconds a model can answer.
        self.model_load_s: Callable[[str], float] = self._configured_boot_s
        # A server that is stopping starts nothing more.
        self.is_stopping = False
        self.epoch = 0
        # Providers whose nodes accept prefetched attempts. They use our attempt id as
        # their reference.
        self.prefetching: frozenset[str] = frozenset()
        self._list_prices: dict[tuple[Shape, str | None], Price] = {}
        self.view = View()
        self._knows_past_usage = False
        self._alarm: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._folding: set[asyncio.Task[Any]] = set()

    def start(self, epoch: int | None = None) -> None:
        """Read the ledger, mark every node silent until its agent says Hello, and begin
        to write.

        `epoch` is that of the lease that this server holds; it fences the writer. None
        takes the next number.
        """
        self.epoch = self.queries.next_epoch() if epoch is None else epoch
        self.writer.epoch = epoch
        self.reload()
        self.writer.start()
        now = self.clock()
        silent = {
            "state": "silent",
            "reason": "its agent has not connected since the server started",
        }
        changes = [
            Change(Table.NODES, node.id, silent)
            for node in self.view.nodes.values()
            if node.state != REMOVED
        ]
        self.emit([Event(EventKind.NODE_CHANGED, now, (change,)) for change in changes])

    async def close(self) -> None:
        """Cancel the background tasks, and write what is queued."""
        for handle in (self._alarm, self._soon):
            if handle:
                handle.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.close()

    # --- events ---

    def emit(self, events: Sequence[Event], *, can_wait: bool = False) -> None:
        """Fold `events` into the view and queue them for the next commit."""
        for event in events:
            observe(self.view, event)
        if events:
            self.writer.add_events(events, can_wait=can_wait)

    def emit_many(
        self, events: Sequence[Event], parents: Set[str] = frozenset()
    ) -> asyncio.Future[None]:
        """Queue `events` for one commit, and fold them into the view in slices, so that
        other tasks can run in between. The future is done when all are folded.

        `parents`: the older jobs on which new ones depend.

        `events` is read twice and never copied as a whole, so it may be a sequence that
        makes each event when it is read.
        """
        self.writer.add_events(events)
        folding = self.spawn(self._fold(events, parents), "fold")
        self._folding.add(folding)
        folding.add_done_callback(self._folding.discard)
        return asyncio.shield(folding)

    async def folded(self) -> None:
        """Wait until all that `emit_many` has got so far is in the view. Before that,
        the ledger may have jobs that the view does not know.
        """
        if self._folding:
            await asyncio.wait(self._folding)

    async def _fold(self, events: Sequence[Event], parents: Set[str]) -> None:
        view = self.view
        for start in range(0, len(events), SLICE):
            # A decision between two slices forgets what nobody in the view waits for.
            while not self.add_ended_parents(parents):
                await self.committed()
            if self.view is not view:
                return  # the view was read again from the ledger
            for event in events[start : start + SLICE]:
                observe(view, event)
            await asyncio.sleep(0)

    def committed(
        self, *, can_wait: bool = False, own_only: bool = False
    ) -> asyncio.Future[None]:
        """Done when all events emitted so far are in the ledger; with `own_only`, only
        those that this task emitted.
        """
        return self.writer.committed(can_wait=can_wait, own_only=own_only)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as a background task; its exceptions are logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        # Of a failed commit, everything is said and done: memory was read again.
        if fault and not isinstance(fault, LedgerError):
            log.error(
                "background work failed",
                task=task.get_name(),
                exc_info=fault,
            )

    def _publish(self, first_seq: int, events: Sequence[Event]) -> None:
        for listener in self.listeners:
            listener(first_seq, events)

    @staticmethod
    def read_spec(body: Mapping[str, Any]) -> JobSpec:
        """The spec from its JSON in the ledger, where it was validated before."""
        return JobSpec.model_validate(body, context=STORED)

    # --- decisions ---

    def schedule_soon(self) -> None:
        """Decide once for all that happens at this moment."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._decide_soon)

    def _decide_soon(self) -> None:
        self._soon = None
        self.schedule()

    def schedule(self) -> None:
        """Decide until there are no more actions; emit the intents and pass them to
        `on_intents`.
        """
        # One time for all: what ends by time must end before the extensions decide, or
        # they would not see it, and nothing would wake them again.
        now = self.clock()
        self.view.apply_quarantines(now)
        self.view.end_cooling(now)
        self.view.release_delayed(now, self.policy.retry_max_s)
        self.before_deciding()
        if self.is_stopping:
            return
        intents: list[str] = []
        while True:
            decision = decide(self.view, now, self.policy)
            if not decision.actions:
                break
            for action in decision.actions:
                attempt_id = self._carry_out(action)
                if attempt_id is not None:
                    intents.append(attempt_id)
        for job, node_id in plan_prefetches(
            self.view, self.clock(), self.policy, self.prefetching
        ):
            intents.append(
                self._emit_intent(job, (Placement(node_id, prefetched=True),))
            )
        self._set_alarm(decision.wake_at)
        if intents:
            self.on_intents(intents)

    def _carry_out(self, action: Action) -> str | None:
        """Emit the event of an action; returns the id of a new attempt."""
        now = self.clock()
        job = self.view.jobs[action.job_id]
        match action:
            case Preempt():
                attempt = self.view.attempts[action.attempt_id]
                ending = transitions.ending(
                    attempt, Reason.PREEMPTED, now, action.for_job
                )
                self.emit([ending])
                self.on_ending(attempt)
                return None
            case Withdraw():
                attempt = self.view.attempts[action.attempt_id]
                self.emit([transitions.ending(attempt, Reason.REVOKED, now)])
                self.on_ending(attempt)
                return None
            case Fail():
                failed = transitions.job_ended(
                    job, JobState.FAILED, action.reason, now, action.message
                )
                self.emit([failed])
                return None
            case Start():
                return self._emit_intent(job, action.placements)

    def _emit_intent(self, job: LiveJob, placements: tuple[Placement, ...]) -> str:
        """Emit the intent to run the job there; returns the id of the new attempt."""
        attempt_id = new_id("attempt")
        offer = self.view.external_queues.offer(placements[0].offer)
        if offer:
            provider = offer.provider
            price = self._offer_price(offer, job)
            if offer.parts:
                known = {
                    "prices": by_name(offer.parts),
                    "price_sources": sources_by_name(offer.parts),
                }
                placements = tuple(replace(one, **known) for one in placements)
        else:
            provider = provider_for(self.view.nodes[placements[0].node_id], job.shape)
            price = self.list_price_for(job)
        intent = transitions.intended(
            job,
            attempt_id,
            token=job.attempts + 1,
            epoch=self.epoch,
            provider=provider,
            reference=attempt_id if provider in self.prefetching else None,
            placements=placements,
            price=price,
            now=self.clock(),
            gpu=gpu_kind(self.view, job.shape, placements),
        )
        self.emit([intent])
        return attempt_id

    def ran_s(self, attempt_id: str, started_at: float) -> float:
        """For how many seconds an attempt that runs has run, since `started_at`."""
        measured = self.run_clock.ran_s(attempt_id)
        return run_time_s(started_at, self.clock(), measured)

    def list_price_for(self, job: LiveJob) -> Price:
        """The list price of the job on our own nodes."""
        return self.list_price_of(job.shape, job.tier)

    def list_price_of(self, shape: Shape, tier: str | None = None) -> Price:
        """The list price of the shape, or of the tier, on our own nodes."""
        price = self._list_prices.get((shape, tier))
        if price is None:
            billing = self.settings.billing
            price = list_price(
                shape,
                tier,
                self.tiers,
                billing.local_price_per_hour,
                billing.currency,
            )
            self._list_prices[shape, tier] = price
        return price

    def _offer_price(self, offer: Offer, job: LiveJob) -> Price:
        """What the offer costs for this job; the list price if the offer has none."""
        per_hour = offer.hourly(job.shape.gpus, job.shape.cpus, job.shape.nodes)
        if per_hour is None:
            return self.list_price_for(job)
        basis = SHARE if offer.model else "offer"
        return Price(per_hour, offer.currency, basis, job.tier or "")

    def _set_alarm(self, wake_at: float | None) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None
        if wake_at is not None:
            delay = max(wake_at - self.clock(), 0.0)
            self._alarm = asyncio.get_running_loop().call_later(delay, self.schedule)

    def _configured_boot_s(self, model: str) -> float:
        return self.settings.models[model].boot_s

    # --- memory ---

    def reload(self) -> None:
        """Read the view again from the ledger; keep what is known of external queues,
        which the ledger does not hold.
        """
        before = self.view.external_queues
        manager = self.settings.resource_manager
        usage = new_usage(self.settings)
        if self._knows_past_usage:
            usage.take_past(self.view.usage)
        empty = View(
            brain_ranks=manager.brain_ranks,
            cooling_s=manager.cooling_s,
            usage=usage,
            budgets=self.budget_table(),
        )
        self.view = rebuild_view(self.queries, self.clock(), empty)
        if not self._knows_past_usage:
            read_past_usage(self.view, self.queries, self.clock())
        self._knows_past_usage = True
        self.submitting = {}
        self.view.add_external_queues(before.by_name, before.containers)
        self.view.external_queues.history = before.history

    def add_ended_parents(self, job_ids: Set[str]) -> bool:
        """Put those of the parents `job_ids` that have ended into the view; False while
        the end of one is not committed yet.
        """
        return add_ended_parents(self.view, self.queries, job_ids)

    def _commit_failed(self) -> None:
        log.warning("a commit failed: memory is read again from the ledger")
        self.reload()
        self.on_reload()
        self._set_alarm(self.clock() + RETRY_WRITE_S)
