"""The view: live jobs, attempts and nodes in memory. The scheduler decides by it, and
the controller acts on it.

It is the fold of all events (`observe`), plus decisions that are not committed yet.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuyard.domain.shape import Placement
from gpuyard.domain.states import JobState
from gpuyard.scheduler.actions import Action, Preempt, Start, Withdraw
from gpuyard.scheduler.advance import AdvanceReservation, AdvanceTable
from gpuyard.scheduler.arrays import LiveArray
from gpuyard.scheduler.attempts import LiveAttempt, Promise
from gpuyard.scheduler.budgets import BudgetTable
from gpuyard.scheduler.deadlines import DeadlineTable
from gpuyard.scheduler.external_queues import ExternalQueue, ExternalQueueTable
from gpuyard.scheduler.heaps import LazyHeap
from gpuyard.scheduler.index import NodeIndex
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.parties import Party
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.pools import PoolPlace
from gpuyard.scheduler.prefetch_sites import PrefetchSites
from gpuyard.scheduler.queue import Queue
from gpuyard.scheduler.release_times import ReleaseTimes
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.victims import Victims


def cooling_holder(gpu_uuid: str) -> str:
    """Who books a GPU while it cools."""
    return f"cooling {gpu_uuid}"


@dataclass(slots=True, eq=False)
class View:
    """Jobs, attempts and nodes that matter to a decision.

    A queued job is in exactly one place:
    - `queue`: it may start;
    - `delayed`: it waits for its `not_before`;
    - `held`: it waits for its release;
    - `arrays`, by array: it waits until fewer tasks of its array run;
    - `budgets`: it waits until one of them has room;
    - `dependents`, by parent: it waits for other jobs;
    - `doomed`, with the parent that ended otherwise: it can never start;
    - `tentative`: an action on it is decided and not committed yet.

    `brain_ranks`: by index or UUID of a GPU, its `Device.brain_rank`. `cooling_s`: a
    GPU whose attempt has ended gets no other for so long. `cooling`: the holders that
    book GPUs meanwhile, and until when (UTC seconds).

    `ended` holds ended jobs on which live ones depend; a decision forgets the others,
    so memory follows the live jobs. `promises` are by the job that gets the places;
    `leaving` holds attempts whose preemption or withdrawal is decided.

    `pools`, by name: the nodes that may come there are no nodes yet.

    The rest saves work. `revision` grows with every change. `settled` is the revision,
    the policy and the time of the last decision without actions, and until when it
    holds.
    """

    jobs: dict[str, LiveJob] = field(default_factory=dict[str, LiveJob])
    attempts: dict[str, LiveAttempt] = field(default_factory=dict[str, LiveAttempt])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    devices: dict[str, Device] = field(default_factory=dict[str, Device])
    brain_ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    cooling_s: float = 0.0
    cooling: dict[str, float] = field(default_factory=dict[str, float])
    queue: Queue = field(default_factory=Queue)
    delayed: LazyHeap[tuple[float, str]] = field(
        default_factory=LazyHeap[tuple[float, str]]
    )
    held: set[str] = field(default_factory=set[str])
    arrays: dict[str, LiveArray] = field(default_factory=dict[str, LiveArray])
    budgets: BudgetTable = field(default_factory=BudgetTable)
    dependents: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    doomed: dict[str, str] = field(default_factory=dict[str, str])
    tentative: dict[str, Action] = field(default_factory=dict[str, Action])
    ended: dict[str, JobState] = field(default_factory=dict[str, JobState])
    prefetch_sites: PrefetchSites = field(default_factory=PrefetchSites)
    promises: dict[str, Promise] = field(default_factory=dict[str, Promise])
    leaving: set[str] = field(default_factory=set[str])
    victims: Victims = field(default_factory=Victims)
    learning: Learning = field(default_factory=Learning)
    index: NodeIndex = field(default_factory=NodeIndex)
    release_times: ReleaseTimes = field(default_factory=ReleaseTimes)
    external_queues: ExternalQueueTable = field(default_factory=ExternalQueueTable)
    usage: Usage = field(default_factory=Usage)
    advance: AdvanceTable = field(default_factory=AdvanceTable)
    deadlines: DeadlineTable = field(default_factory=DeadlineTable)
    pools: dict[str, PoolPlace] = field(default_factory=dict[str, PoolPlace])
    revision: int = 0
    settled: tuple[int, Policy, float, float | None] | None = None

    def node(self, node_id: str) -> Node:
        """The node. An unknown one is added, offline and empty, so that rows may come
        in any order.
        """
        return self.nodes.get(node_id) or self.nodes.setdefault(node_id, Node(node_id))

    def nodes_of(self, gpu_uuids: Iterable[str]) -> set[str]:
        """The ids of the nodes that have these GPUs."""
        devices = [self.devices[uuid] for uuid in gpu_uuids if uuid in self.devices]
        return {device.node_id for device in devices if device.node_id is not None}

    def attempts_on(self, node_id: str) -> list[LiveAttempt]:
        """The live attempts that a node runs or is to run for us."""
        return [
            attempt
            for attempt in self.attempts.values()
            if not attempt.offer and attempt.runs_on(node_id)
        ]

    def party(self, project: str | None, owner: str | None) -> Party:
        """The party of a job of this project and owner."""
        party = self.usage.party(project, owner)
        if not self.advance.by_id:
            return party
        return party._replace(reserved_for=self.advance.reserved_for(project, owner))

    def add_reservation(self, booked: AdvanceReservation) -> None:
        """Add or replace an advance reservation."""
        self.advance.add(booked)
        self._reserved_for_changed()

    def remove_reservation(self, reservation_id: str) -> None:
        """Remove an advance reservation; idempotent."""
        self.advance.remove(reservation_id)
        self._reserved_for_changed()

    def _reserved_for_changed(self) -> None:
        """File the jobs in the queue anew for which something is reserved now, or is no
        more.
        """
        self.revision += 1
        for job in self.jobs.values():
            party = self.party(job.project, job.owner)
            if party == job.party:
                continue
            is_queued = job.id in self.queue
            if is_queued:
                self.queue.remove(job.id)
            job.party = party
            if is_queued:
                self.queue.add(job)

    def add_job(self, job: LiveJob) -> None:
        """A job is live from now on. `enqueue` says where it waits."""
        self.jobs[job.id] = job
        array = self.array_of(job)
        if array is not None:
            array.join()

    def enqueue(self, job: LiveJob) -> None:
        """Put a queued job where it belongs: see the class."""
        if job.waits_for:
            self._wait_for_parents(job)
        failed_parents = [parent for parent in job.waits_for if parent in self.ended]
        may_start = False
        if failed_parents:
            self.doomed[job.id] = failed_parents[0]
        elif job.waits_for:
            pass  # `dependents` has it
        elif job.held:
            self.held.add(job.id)
        elif job.not_before is not None:
            self.delayed.add((job.not_before, job.id))
        else:
            may_start = True
            self._queue(job)
        if not may_start:
            self.leave_array(job)

    def _queue(self, job: LiveJob) -> None:
        """Put the job into the queue, unless enough tasks of its array are there, or a
        budget has no room for it.
        """
        array = self.array_of(job)
        is_admitted = array is None or array.admit(job)
        if is_admitted and self.budgets.admit(job):
            self.queue.add(job)

    # --- arrays that limit how many of their tasks run ---

    def array_of(self, job: LiveJob) -> LiveArray | None:
        """The array of which it is a task, if that has a limit."""
        return self.arrays.get(job.array_id) if job.array_id else None

    def leave_array(self, job: LiveJob, *, has_ended: bool = False) -> None:
        """The job neither may start nor has an attempt: another task of its array, and
        other jobs of its budgets, may take its place. Idempotent, unless it
        `has_ended`: an array all of whose tasks have is forgotten.
        """
        if self.budgets.by_name:
            self.budgets.leave(job)
            self.admit_to_budgets()
        array = self.array_of(job)
        if array is None:
            return
        array.leave(job)
        self.admit_more(array)
        if has_ended:
            array.live -= 1
            if array.is_over and job.array_id:
                del self.arrays[job.array_id]

    def admit_more(self, array: LiveArray) -> None:
        """Put those of its tasks into the queue whose turn it is."""
        while job_id := array.next():
            job = self.jobs[job_id]
            array.admit(job)
            if self.budgets.admit(job):
                self.queue.add(job)

    def admit_to_budgets(self) -> None:
        """Put the jobs into the queue for which budgets have room now."""
        for job in self.budgets.next_jobs():
            self.revision += 1
            self.queue.add(job)

    def _wait_for_parents(self, job: LiveJob) -> None:
        """Drop parents that have ended as they must, and register the job with the
        others.
        """
        job.waits_for = tuple(
            parent for parent in job.waits_for if not self._allows(parent, job)
        )
        for parent in job.waits_for:
            self.dependents.setdefault(parent, set()).add(job.id)

    def _allows(self, parent: str, job: LiveJob) -> bool:
        state = self.ended.get(parent)
        return state is not None and job.wanted_end(parent).allows(state)

    def remove_job(self, job: LiveJob) -> None:
        """Undo `enqueue` and any tentative action on the job; idempotent."""
        for parent in job.waits_for:
            children = self.dependents.get(parent, set())
            children.discard(job.id)
            if not children:
                self.dependents.pop(parent, None)
        self.doomed.pop(job.id, None)
        self.held.discard(job.id)
        self.budgets.forget(job)
        array = self.array_of(job)
        if array is not None:
            array.stop_waiting(job)
        if job.not_before is not None:
            self.delayed.discard((job.not_before, job.id))
        self.queue.remove(job.id)
        self.break_promise(job.id)
        self.revision += 1
        action = self.tentative.pop(job.id, None)
        if isinstance(action, Start):
            self.unbook(job.id, action.placements)
            self.usage.end(job.id)

    def apply_tentatively(self, job: LiveJob, action: Action) -> None:
        """Note an action that is not committed yet: the job leaves the queue, and a
        start books its places.
        """
        self.revision += 1
        self.queue.remove(job.id)
        self.doomed.pop(job.id, None)
        self.tentative[job.id] = action
        if isinstance(action, Start):
            self.book(job.id, action.placements)
            self.usage.hold(job.id, job, action.placements, self.nodes)

    def apply_preemption(
        self, action: Preempt, placements: tuple[Placement, ...]
    ) -> None:
        """Note a preemption that is not committed yet, and keep `placements` for the
        job that it is for.
        """
        self.revision += 1
        self.leaving.add(action.attempt_id)
        self.victims.exclude(action.attempt_id)
        attempts = frozenset({action.attempt_id})
        if before := self.promises.get(action.for_job):
            attempts |= before.attempts
        self.promises[action.for_job] = Promise(placements, attempts)

    def undo_preemption(self, action: Preempt) -> None:
        """Undo a tentative preemption."""
        self.revision += 1
        self.leaving.discard(action.attempt_id)
        self.victims.changed.add(action.attempt_id)
        self.break_promise(action.for_job)

    def apply_withdrawal(self, action: Withdraw) -> None:
        """Note a withdrawal that is not committed yet. Its places are kept until the
        external queue has ended the attempt.
        """
        self.revision += 1
        self.leaving.add(action.attempt_id)
        if action.placements:
            self.promises[action.job_id] = Promise(
                action.placements, frozenset({action.attempt_id})
            )

    def undo_withdrawal(self, action: Withdraw) -> None:
        """Undo a tentative withdrawal."""
        self.revision += 1
        self.leaving.discard(action.attempt_id)
        self.break_promise(action.job_id)

    def promise(
        self, job_id: str, placements: tuple[Placement, ...], attempts: frozenset[str]
    ) -> None:
        """Keep `placements` for the job while `attempts` leave them."""
        self.revision += 1
        self.promises[job_id] = Promise(placements, attempts)

    def break_promise(self, job_id: str) -> None:
        """Keep no places for the job any more; idempotent."""
        if self.promises.pop(job_id, None):
            # Jobs that were refused these places may start now.
            self.queue.retry_all = True

    def book(self, holder: str, placements: Iterable[Placement]) -> None:
        """Book these shares for `holder`: an attempt, or a job with a tentative
        start.
        """
        for share in placements:
            if share.offer:
                self.external_queues.add_waiting(holder, share.offer)
                continue
            node = self.node(share.node_id)
            node.book(holder, share)
            self._changed(node)

    def unbook(self, holder: str, placements: Iterable[Placement]) -> None:
        """Free what `holder` holds; idempotent."""
        for share in placements:
            if share.offer:
                self.external_queues.remove_waiting(holder)
                self.revision += 1
                continue
            node = self.node(share.node_id)
            if holder in node.bookings:
                node.unbook(holder)
                self._changed(node)

    def cool(self, placements: Iterable[Placement], until: float) -> None:
        """Keep the GPUs of these shares from work until then."""
        for share in placements:
            for uuid in share.booked_gpus:
                holder = cooling_holder(uuid)
                self.cooling[holder] = until
                self.book(holder, [Placement(share.node_id, (uuid,), 0.0, 0.0)])

    def end_cooling(self, now: float) -> None:
        """Free the GPUs that have cooled.

        No pause is longer than `cooling_s`. One that seems longer has ended, too: the
        clock was set back.
        """
        over = [
            holder
            for holder, until in self.cooling.items()
            if not now < until <= now + self.cooling_s
        ]
        for holder in over:
            del self.cooling[holder]
            for node in self.nodes.values():
                if holder in node.bookings:
                    node.unbook(holder)
                    self._changed(node)

    def cools(self, gpu_uuids: Iterable[str]) -> bool:
        """True if one of these GPUs cools."""
        return any(cooling_holder(uuid) in self.cooling for uuid in gpu_uuids)

    def rebuild(self, node: Node) -> None:
        """Recompute a node after its figures, state, devices or trust changed."""
        node.containers = self.external_queues.containers.get(node.provider, "")
        trust = self.external_queues.trust
        node.barred = trust.barred(node.title, (node.provider, node.containers))
        for uuid, device in node.devices.items():
            quarantine = trust.of_gpu(uuid)
            if device.quarantine != quarantine:
                changed = replace(device, quarantine=quarantine)
                self.devices[uuid] = changed
                node.devices[uuid] = changed
        node.rebuild()
        self.advance.outdated = True
        self.usage.capacity_changed()
        self._changed(node)

    def set_container_provider(self, node_provider: str, carrier: str) -> None:
        """Let provider `carrier` run containers on the nodes of `node_provider`; an
        empty `carrier` means that nobody does.
        """
        containers = dict(self.external_queues.containers)
        containers.pop(node_provider, None)
        if carrier:
            containers[node_provider] = carrier
        self.add_external_queues({}, containers)

    def add_external_queues(
        self,
        queues: Mapping[str, ExternalQueue],
        containers: Mapping[str, str] | None = None,
    ) -> None:
        """Add external queues by name. `containers`, if given, replaces which provider
        runs containers on the nodes of which.
        """
        self.revision += 1
        self.external_queues.by_name.update(queues)
        if containers is None or containers == self.external_queues.containers:
            return
        self.external_queues.containers = dict(containers)
        self._rebuild_all()

    def apply_quarantines(self, now: float) -> None:
        """Apply the quarantines that are in force at `now` (UTC seconds), and drop
        those that have ended.
        """
        if self.external_queues.trust.refresh(now):
            self._rebuild_all()
            # An offer where attempts wait may be in quarantine now.
            self.external_queues.recheck_waiting = True

    def usable_devices(self, *, joined: bool = False) -> list[Device]:
        """The GPUs that models and batches may get: they are usable, their nodes are
        online, and neither is in quarantine. Those of machines that have joined are
        only among them if `joined`.
        """
        usable_nodes = {
            node.id
            for node in self.nodes.values()
            if node.online
            and (joined or not node.joined)
            and node.provider not in node.barred
        }
        return [
            device
            for device in self.devices.values()
            if device.usable
            and not device.quarantine
            and device.node_id in usable_nodes
        ]

    def _rebuild_all(self) -> None:
        for node in self.nodes.values():
            self.rebuild(node)
        self.queue.reopen(self.queue.closed)
        self.queue.retry_all = True

    def _changed(self, node: Node) -> None:
        self.index.update(node)
        self.release_times.changed.add(node.id)
        self.revision += 1

    def release_delayed(self, now: float, longest_s: float = math.inf) -> None:
        """Queue the delayed jobs whose `not_before` has passed.

        No delay is longer than `longest_s`. One that seems longer has ended, too: the
        clock was set back.
        """
        while first := self.delayed.first():
            not_before, job_id = first
            if now < not_before <= now + longest_s:
                return
            self.delayed.discard(first)
            self._queue(self.jobs[job_id])

    def forget_ended(self) -> None:
        """Forget ended jobs on which no live job depends."""
        for job_id in self.ended.keys() - self.dependents.keys():
            del self.ended[job_id]
