"""The view: all that is remembered of live jobs, attempts and nodes; the scheduler decides on it and the controller
acts on it. It is the fold of events (`observe`) plus what is only decided yet."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuyard.domain.shape import Placement
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.scheduler.ends import Ends
from gpuyard.scheduler.engines import Engine, Engines
from gpuyard.scheduler.index import NodeIndex
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import LazyHeap, Queue
from gpuyard.scheduler.sites import Sites
from gpuyard.scheduler.victims import Victims


@dataclass(slots=True)
class LiveAttempt:
    """An attempt that holds its booking. Times are UTC seconds; `started_at` is None until it runs, `reason` until it
    is asked to end."""

    id: str
    job_id: str
    state: AttemptState
    token: int
    placements: tuple[Placement, ...]
    created_at: float
    started_at: float | None = None
    number: int = 1
    provider: str = ""
    provider_ref: str | None = None
    price_per_hour: str = "0"
    reason: str | None = None

    @property
    def node_id(self) -> str:
        """Its first node: the one its agent's reports come from."""
        return self.placements[0].node_id if self.placements else ""

    @property
    def offer(self) -> str:
        """What it was sent to, where an engine places it and not we; else empty."""
        return self.placements[0].offer if self.placements else ""

    @property
    def ahead(self) -> bool:
        """Sent to its node before there is a place for it."""
        return any(share.ahead for share in self.placements)


@dataclass(frozen=True, slots=True)
class Start:
    """Start the job on these places."""

    job_id: str
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """End the job as failed: it can never start. `reason` is for machines, `message` for people."""

    job_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop an attempt of `job_id`, which goes back into the line, so that `for_job` can start."""

    job_id: str
    attempt_id: str
    for_job: str


@dataclass(frozen=True, slots=True)
class Recall:
    """Take an attempt back that waits at an engine: there is room for its job here, at `placements`; or the offer is in
    quarantine, and there are none."""

    job_id: str
    attempt_id: str
    placements: tuple[Placement, ...]


Action = Start | Fail | Preempt | Recall


@dataclass(slots=True)
class Promise:
    """Places that `attempts` are leaving for a job; kept until it starts or nothing is freed."""

    placements: tuple[Placement, ...]
    attempts: frozenset[str]


@dataclass(slots=True, eq=False)
class View:
    """Jobs, attempts and nodes that matter to a decision.

    A queued job is in exactly one place: `queue`, `delayed` (until its `not_before`), blocked (in `dependents`, by
    parent), `doomed` (child to the parent that ended otherwise than completed) or `tentative` (acted on, not yet firm).
    `ended` holds jobs that are over while a live job depends on them; one on which none does by the next decision is
    forgotten, so memory follows the live jobs. `promises` are by the job that waits for them, `leaving` the attempts
    whose preemption is decided.

    The rest saves work. `revision` grows with every change; `settled` is the revision, the policy and the time at which
    nothing was to be done, and until when.
    """

    jobs: dict[str, LiveJob] = field(default_factory=dict[str, LiveJob])
    attempts: dict[str, LiveAttempt] = field(default_factory=dict[str, LiveAttempt])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    devices: dict[str, Device] = field(default_factory=dict[str, Device])
    queue: Queue = field(default_factory=Queue)
    delayed: LazyHeap[tuple[float, str]] = field(default_factory=LazyHeap[tuple[float, str]])
    dependents: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    doomed: dict[str, str] = field(default_factory=dict[str, str])
    tentative: dict[str, Action] = field(default_factory=dict[str, Action])
    ended: dict[str, JobState] = field(default_factory=dict[str, JobState])
    sites: Sites = field(default_factory=Sites)
    promises: dict[str, Promise] = field(default_factory=dict[str, Promise])
    leaving: set[str] = field(default_factory=set[str])
    victims: Victims = field(default_factory=Victims)
    learning: Learning = field(default_factory=Learning)
    index: NodeIndex = field(default_factory=NodeIndex)
    ends: Ends = field(default_factory=Ends)
    engines: Engines = field(default_factory=Engines)
    revision: int = 0
    settled: tuple[int, Policy, float, float | None] | None = None

    def node(self, node_id: str) -> Node:
        """The node; one not heard of yet stands offline and empty, so that rows may come in any order."""
        return self.nodes.get(node_id) or self.nodes.setdefault(node_id, Node(node_id))

    def attempts_on(self, node_id: str) -> list[LiveAttempt]:
        """The live attempts of a node."""
        return [attempt for attempt in self.attempts.values() if attempt.node_id == node_id]

    def file(self, job: LiveJob) -> None:
        """Put a queued job where it belongs."""
        lost = self._wait_for_parents(job) if job.waits_for else None
        if lost is not None:
            self.doomed[job.id] = lost
        elif not job.waits_for and job.not_before is not None:
            self.delayed.add((job.not_before, job.id))
        elif not job.waits_for:
            self.queue.add(job)

    def _wait_for_parents(self, job: LiveJob) -> str | None:
        """Note whose end the job waits for; a parent that ended otherwise than completed, if there is one."""
        job.waits_for = tuple(p for p in job.waits_for if self.ended.get(p) is not JobState.COMPLETED)
        for parent in job.waits_for:
            self.dependents.setdefault(parent, set()).add(job.id)
        return next((parent for parent in job.waits_for if parent in self.ended), None)

    def withdraw(self, job: LiveJob) -> None:
        """Take a job out of wherever `file` or a decision put it; nothing changes when it is nowhere."""
        for parent in job.waits_for:
            children = self.dependents.get(parent, set())
            children.discard(job.id)
            if not children:
                self.dependents.pop(parent, None)
        self.doomed.pop(job.id, None)
        if job.not_before is not None:
            self.delayed.discard((job.not_before, job.id))
        self.queue.remove(job.id)
        self.break_promise(job.id)
        self.revision += 1
        action = self.tentative.pop(job.id, None)
        if isinstance(action, Start):
            self.unbook(job.id, action.placements)

    def act(self, job: LiveJob, action: Action) -> None:
        """Let `action` on the job stand as tentative: out of line, and booked where it starts."""
        self.revision += 1
        self.queue.remove(job.id)
        self.doomed.pop(job.id, None)
        self.tentative[job.id] = action
        if isinstance(action, Start):
            self.book(job.id, action.placements)

    def preempt(self, action: Preempt, placements: tuple[Placement, ...]) -> None:
        """Let the preemption stand as tentative; what it frees is promised."""
        self.revision += 1
        self.leaving.add(action.attempt_id)
        self.victims.leave(action.attempt_id)
        before = self.promises.get(action.for_job)
        attempts = before.attempts if before else frozenset[str]()
        self.promises[action.for_job] = Promise(placements, attempts | {action.attempt_id})

    def spare(self, action: Preempt) -> None:
        """Take a tentative preemption back."""
        self.revision += 1
        self.leaving.discard(action.attempt_id)
        self.victims.changed.add(action.attempt_id)
        self.break_promise(action.for_job)

    def take_back(self, action: Recall) -> None:
        """Let the recall stand as tentative; what it is for is kept until the engine has let go of the attempt."""
        self.revision += 1
        self.leaving.add(action.attempt_id)
        if action.placements:
            self.promises[action.job_id] = Promise(action.placements, frozenset({action.attempt_id}))

    def keep_there(self, action: Recall) -> None:
        """Take a tentative recall back."""
        self.revision += 1
        self.leaving.discard(action.attempt_id)
        self.break_promise(action.job_id)

    def promise(self, job_id: str, placements: tuple[Placement, ...], attempts: frozenset[str]) -> None:
        """Keep these places for the job as they are freed; `attempts` are those that leave them."""
        self.revision += 1
        self.promises[job_id] = Promise(placements, attempts)

    def break_promise(self, job_id: str) -> None:
        """The job needs no room made any more; nothing changes when it has no promise."""
        if self.promises.pop(job_id, None):
            self.queue.shuffled = True

    def book(self, holder: str, placements: Iterable[Placement]) -> None:
        """Let `holder` (an attempt, or a job whose start is tentative) hold these shares."""
        for share in placements:
            if share.offer:
                self.engines.send(holder, share.offer)
                continue
            node = self.node(share.node_id)
            node.book(holder, share)
            self._changed(node)

    def unbook(self, holder: str, placements: Iterable[Placement]) -> None:
        """Free what `holder` holds; nothing changes the second time."""
        for share in placements:
            if share.offer:
                self.engines.leave(holder)
                self.revision += 1
                continue
            node = self.node(share.node_id)
            if holder in node.bookings:
                node.unbook(holder)
                self._changed(node)

    def rebuild(self, node: Node) -> None:
        """The node's own figures, its state or its devices have changed."""
        node.containers, trust = self.engines.containers.get(node.provider, ""), self.engines.trust
        node.barred = trust.barred(node.title, (node.provider, node.containers))
        for uuid, device in node.devices.items():
            if device.quarantine != (quarantine := trust.of_gpu(uuid)):
                self.devices[uuid] = node.devices[uuid] = replace(device, quarantine=quarantine)
        node.rebuild()
        self._changed(node)

    def carry(self, nodes: str, carrier: str) -> None:
        """The provider `carrier` runs containers on the nodes of provider `nodes`; empty: nobody does."""
        containers = dict(self.engines.containers)
        containers.pop(nodes, None)
        self.meet({}, {**containers, nodes: carrier} if carrier else containers)

    def meet(self, engines: Mapping[str, Engine], containers: Mapping[str, str] | None = None) -> None:
        """These engines queue, too; and by a provider of nodes, the one that runs containers on them."""
        self.revision += 1
        self.engines.known.update(engines)
        if containers is None or containers == self.engines.containers:
            return
        self.engines.containers = dict(containers)
        self._rebuild_all()

    def heed_trust(self, now: float) -> None:
        """Let quarantines that began take effect, and those whose time has come at `now` (UTC seconds) end."""
        if self.engines.trust.look(now):
            self._rebuild_all()
            self.engines.missed = True  # those who wait at engines may be wanted back

    def usable_devices(self) -> list[Device]:
        """The GPUs on which something of ours may be placed: they and their nodes are well and in no quarantine."""
        open_ = {node.id for node in self.nodes.values() if node.online and node.provider not in node.barred}
        return [device for device in self.devices.values()
                if device.usable and not device.quarantine and device.node_id in open_]  # fmt: skip

    def _rebuild_all(self) -> None:
        for node in self.nodes.values():
            self.rebuild(node)
        self.queue.reopen(self.queue.closed)
        self.queue.shuffled = True

    def _changed(self, node: Node) -> None:
        self.index.update(node)
        self.ends.changed.add(node.id)
        self.revision += 1

    def wake(self, now: float, longest_s: float = math.inf) -> None:
        """Let the delayed jobs whose time has come stand in line.

        Nobody is delayed by more than `longest_s`: where it seems so, the clock was set back, and the wait is over.
        """
        while (first := self.delayed.first()) and not now < first[0] <= now + longest_s:
            self.delayed.discard(first)
            self.queue.add(self.jobs[first[1]])

    def forget_ended(self) -> None:
        """Drop the ends of jobs that no live job depends on."""
        for job_id in self.ended.keys() - self.dependents.keys():
            del self.ended[job_id]
