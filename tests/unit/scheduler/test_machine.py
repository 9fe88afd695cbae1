"""Whatever happens, in whatever order: what must hold of the scheduler."""

import math
from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gpuyard.domain.states import JobState
from gpuyard.scheduler.decide import Fail, Preempt, Start, decide, undo
from gpuyard.scheduler.fair_order import heads_in_turn
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import observe
from gpuyard.scheduler.parties import ProjectShare, Quota, Quotas, ShareRules
from gpuyard.scheduler.placement import place, place_within
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.refusal import impossible
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View
from tests.support.examples import examples
from tests.unit.scheduler.world import A100_80GB, T4, World, snapshot

NODES = ("cpu", "small", "big")
PLACES = (
    "local",
    "node:small",
    "node:big",
    "gpu:GPU-small-0",
    "gpu:GPU-big-0",
    "gpu:GPU-big-1",
)
GPUS = (
    "GPU-small-0",
    "GPU-small-1",
    "GPU-big-0",
    "GPU-big-1",
    "GPU-big-2",
    "GPU-big-3",
)


class Scheduler(RuleBasedStateMachine):
    """A small cluster to which everything happens."""

    order = QueueOrder.GITTINS
    projects = ("lab", "guests")
    owners = (None,)
    # Seconds from the submission on.
    deadlines = (None,)

    def __init__(self) -> None:
        super().__init__()
        policy = Policy(
            order=self.order,
            ageing_s=500.0,
            end_margin_s=5.0,
            reserved_heads=3,
            reservation_notice_s=300.0,
        )
        self.world = World(policy, self.new_usage())
        self.outcomes: dict[str, str] = {}
        self.parents: dict[str, list[str]] = {}
        self.quarantines: dict[str, float] = {}

    def new_usage(self) -> Usage:
        return Usage()

    @initialize()
    def cluster(self):
        self.world.node("cpu", cpus=8, memory_gb=16)
        self.world.node("small", cpus=8, memory_gb=32, gpus=2, card=T4)
        self.world.node("big", cpus=16, memory_gb=64, gpus=4, card=A100_80GB)
        self.world.array("pair", 2)

    @rule(
        priority=st.integers(1, 5),
        gpus=st.integers(0, 4),
        cpus=st.sampled_from([0.1, 1.0, 2.5, 8.0]),
        memory_gb=st.sampled_from([0.0, 0.3, 12.0]),
        nodes=st.integers(1, 2),
        gpu_memory_gb=st.sampled_from([0.0, 16.0, 40.0]),
        timeout_s=st.sampled_from([None, 5.0, 50.0]),
        wait=st.sampled_from([None, -1.0, 20.0]),
        quarantined=st.sampled_from([False, False, True]),
        preemptible=st.sampled_from([False, False, True]),
        parents=st.lists(st.integers(0, 1000), max_size=2),
        whose=st.integers(0, 1000),
    )
    def submit(self, priority, gpus, timeout_s, wait, parents, whose, **shape):
        project = self.projects[whose % len(self.projects)]
        owner = self.owners[whose // 7 % len(self.owners)]
        self.take(
            priority,
            gpus,
            timeout_s,
            wait,
            parents,
            project=project,
            owner=owner,
            deadline=self.deadline_for(whose),
            **shape,
        )

    def deadline_for(self, number: int) -> float | None:
        left_s = self.deadlines[number % len(self.deadlines)]
        return None if left_s is None else self.world.now + left_s

    @rule(count=st.integers(1, 4), parents=st.lists(st.integers(0, 1000), max_size=1))
    def submit_tasks(self, count, parents):
        if "pair" not in self.world.view.arrays:
            self.world.array("pair", 2)  # else it may have been forgotten
        # The tasks of an array have one shape.
        for _ in range(count):
            self.take(3, 1, None, None, parents, array_id="pair")

    def take(self, priority, gpus, timeout_s, wait, parents, **others):
        known = sorted(self.outcomes)
        chosen = [known[number % len(known)] for number in parents] if known else []
        for parent in chosen:
            if self.outcomes[parent] not in ("queued", "running"):
                self.world.set_job(parent, state=self.outcomes[parent])
        not_before = None if wait is None else self.world.now + wait
        job_id = self.world.submit(
            priority, timeout_s, chosen, not_before, gpus=gpus, **others
        )
        self.outcomes[job_id] = "queued"
        self.parents[job_id] = chosen

    @rule(run=st.booleans(), look_again=st.booleans())
    def decide(self, run, look_again):
        self.world.look_at_deadlines()
        view = self.world.view
        now = self.world.now
        waiting = {
            job_id: replace(job)
            for job_id, job in view.jobs.items()
            if job.state is JobState.QUEUED
        }
        decision = decide(view, now, self.world.policy)
        for action in decision.actions:
            if isinstance(action, Preempt):
                assert view.jobs[action.job_id].preemptible
                self.world.preempt(action)
                continue
            if isinstance(action, Fail):
                assert any(
                    self.outcomes[parent] not in ("queued", "running", "completed")
                    for parent in self.parents[action.job_id]
                )
                self.world.set_job(action.job_id, state="failed")
                self.outcomes[action.job_id] = "failed"
                continue
            self.check_start(waiting[action.job_id], action.placements)
            self.world.intend(action)
            self.outcomes[action.job_id] = "running"
            if run:
                self.world.run(action.job_id)
        started = [
            waiting[action.job_id]
            for action in decision.actions
            if isinstance(action, Start)
        ]
        self.check_order(started)
        self.check_holders()
        # not always: what is known from one decision to the next must stay true over
        # many
        if look_again:
            self.check_nobody_was_skipped()
        assert decision.wake_at is None or decision.wake_at > now

    @rule(number=st.integers(0, 1000), held=st.booleans())
    def hold_or_release(self, number, held):
        queued = sorted(
            job_id for job_id, state in self.outcomes.items() if state == "queued"
        )
        if queued:
            self.world.set_job(queued[number % len(queued)], held=held)

    @rule(number=st.integers(0, 1000), priority=st.integers(1, 5))
    def update(self, number, priority):
        live = sorted(self.world.view.jobs)
        if live:
            self.world.set_job(live[number % len(live)], priority=priority)

    def check_start(self, job, placements):
        """It was free to start, and it got all it asked for from nodes and GPUs that
        are well.
        """
        assert not job.held
        assert job.not_before is None or job.not_before <= self.world.now
        assert all(
            self.outcomes[parent] == "completed" for parent in self.parents[job.id]
        )
        assert (
            len({share.node_id for share in placements})
            == len(placements)
            == job.shape.nodes
        )
        self.check_reserved(job, placements)
        for share in placements:
            node = self.world.view.nodes[share.node_id]
            assert node.online
            assert job.shape.quarantined or not self.judged(
                f"node:{node.id}", "local", *(f"gpu:{uuid}" for uuid in share.gpu_uuids)
            )
            assert len(set(share.gpu_uuids)) == job.shape.gpus
            for uuid in share.gpu_uuids:
                assert node.devices[uuid].usable
                assert node.devices[uuid].memory_gb >= job.shape.gpu_memory_gb
            assert (share.cpus, share.memory_gb) == (
                job.shape.cpus,
                job.shape.memory_gb,
            )

    def check_reserved(self, job, placements):
        """It takes nothing that is reserved for others by the time when it ends."""
        used = {uuid for share in placements for uuid in share.gpu_uuids}
        notice_s = self.world.policy.reservation_notice_s
        runs_s = notice_s if job.timeout_s is None else job.timeout_s + 5.0
        for booked in self.world.view.advance.coming:
            if not job.preemptible and not booked.is_held_by(job):
                is_over = self.world.now + runs_s <= booked.begins_at
                assert is_over or used.isdisjoint(booked.uuids())

    def check_holders(self):
        """No job waits that fits on what is free of the GPUs reserved for it."""
        view = self.world.view
        for booked in view.advance.current(self.world.now):
            for job in view.queue:
                is_other = not booked.is_held_by(job) or not job.shape.gpus
                if is_other or job.id in view.promises or not view.usage.allows(job):
                    continue
                free = self.free_for(job)
                spaces = {}
                for node_id, share in booked.shares.items():
                    space = free.get(node_id) or view.nodes[node_id].free
                    devices = [d for d in space.devices if d.uuid in share.gpu_uuids]
                    spaces[node_id] = replace(space, devices=tuple(devices))
                assert place_within(view, job.shape, spaces) is None

    def free_for(self, job):
        """What the job may use of nodes where something is promised or reserved."""
        view = self.world.view
        reservations = Reservations(view, self.world.now, self.world.policy)
        spaces = reservations.spaces(job, math.inf)
        for promise in view.promises.values():
            for share in promise.placements:
                space = spaces.get(share.node_id) or view.nodes[share.node_id].free
                spaces[share.node_id] = space.minus(share)
        return spaces

    @rule(
        begins_in=st.sampled_from([-1.0, 10.0, 100.0, 900.0]),
        lasts=st.sampled_from([20.0, 60.0, 1000.0]),
        gpus=st.sampled_from([1, 2, 4, None]),
        node=st.sampled_from([None, "big", "small"]),
        whose=st.integers(0, 1000),
    )
    def reserve(self, begins_in, lasts, gpus, node, whose):
        project = self.projects[whose % len(self.projects)]
        user = None if project else "ana"
        begins_at = self.world.now + begins_in
        node = node or (None if gpus else "cpu")
        self.world.reserve(
            begins_at, begins_at + lasts, project, user, gpus=gpus, node=node
        )

    @precondition(lambda self: self.world.view.advance.by_id)
    @rule(number=st.integers(0, 1000))
    def unreserve(self, number):
        known = sorted(self.world.view.advance.by_id)
        self.world.unreserve(known[number % len(known)])

    def check_order(self, started):
        """First come, first served within a bucket; and the first of all in line waits
        only for want of room.
        """
        view = self.world.view
        for job in started:
            assert not any(
                other.id < job.id
                and (other.priority, other.shape) == (job.priority, job.shape)
                and other.deadline == job.deadline
                and other.party == job.party
                for other in view.queue
            )
        assert all(place(view, shape) is None for shape in view.queue.closed), (
            "closed, and yet it fits"
        )
        first = self.first_in_line()
        if first is not None and first.id not in view.promises:
            assert place(view, first.shape, self.free_for(first)) is None

    def first_in_line(self) -> LiveJob | None:
        view = self.world.view
        ranking = Ranking(self.world.policy, view.learning)
        return next(view.queue.heads(ranking, self.world.now), None)

    def check_nobody_was_skipped(self):
        """Who looks only at what is new leaves nobody out whom a look at everything
        would let start.
        """
        view = self.world.view
        view.queue.reopen(view.queue.closed)
        view.queue.retry_all = True
        view.settled = None
        left = decide(view, self.world.now, self.world.policy).actions
        assert not any(isinstance(action, Start) for action in left)
        for action in left:
            undo(view, action)

    @rule()
    def decide_and_undo(self):
        self.world.view.apply_quarantines(self.world.now)
        self.world.view.release_delayed(self.world.now)
        self.world.view.forget_ended()
        before = snapshot(self.world.view)
        for action in decide(
            self.world.view, self.world.now, self.world.policy
        ).actions:
            undo(self.world.view, action)
        self.world.view.release_delayed(self.world.now)
        assert snapshot(self.world.view) == before

    def live(self) -> list[str]:
        return sorted(attempt.job_id for attempt in self.world.view.attempts.values())

    @precondition(lambda self: self.world.view.attempts)
    @rule(
        number=st.integers(0, 1000),
        outcome=st.sampled_from(["completed", "completed", "failed", "timed_out"]),
    )
    def end(self, number, outcome):
        job_id = self.live()[number % len(self.live())]
        self.world.end(job_id, outcome)
        self.outcomes[job_id] = outcome

    @precondition(lambda self: self.world.view.attempts)
    @rule(number=st.integers(0, 1000), wait=st.sampled_from([None, 10.0]))
    def retry(self, number, wait):
        job_id = self.live()[number % len(self.live())]
        if self.world.view.jobs[job_id].array_id:
            # Whether it waits decides who is admitted, and a replay does not wait.
            wait = None
        self.world.end(
            job_id, "queued", not_before=None if wait is None else self.world.now + wait
        )
        self.outcomes[job_id] = "queued"

    @precondition(lambda self: "queued" in self.outcomes.values())
    @rule(
        number=st.integers(0, 1000),
        change=st.sampled_from([{"state": "cancelled"}, {"priority": 5}]),
    )
    def change_queued(self, number, change):
        queued = sorted(
            job_id for job_id, outcome in self.outcomes.items() if outcome == "queued"
        )
        job_id = queued[number % len(queued)]
        self.world.set_job(job_id, **change)
        self.outcomes[job_id] = change.get("state", "queued")

    @rule(at_most=st.sampled_from([1, 2, 3, None]))
    def limit_changes(self, at_most):
        self.world.array("pair", at_most)

    @rule(
        node_id=st.sampled_from(NODES),
        state=st.sampled_from(["online", "online", "silent", "draining", "gone"]),
    )
    def node_changes(self, node_id, state):
        self.world.set_node(node_id, state)

    @rule(
        uuid=st.sampled_from(GPUS),
        state=st.sampled_from(["idle", "idle", "offline", "quarantined", "cooling"]),
    )
    def gpu_changes(self, uuid, state):
        self.world.set_gpu(uuid, state=state)

    @rule(uuid=st.sampled_from(GPUS), here=st.booleans())
    def gpu_leaves_or_comes_back(self, uuid, here):
        self.world.set_gpu(uuid, node_id=uuid.split("-")[1] if here else None)

    @rule(
        place_=st.sampled_from(PLACES),
        seconds=st.sampled_from([None, 0.0, 20.0, 300.0]),
    )
    def place_is_judged(self, place_, seconds):
        """It is in quarantine from now on, was until now, or nothing is known of it any
        more.
        """
        self.quarantines.pop(place_, None)
        if seconds is None:
            self.world.forget(place_)
        else:
            self.quarantines[place_] = self.world.now + seconds
            self.world.trust(place_, self.quarantines[place_])

    def judged(self, *places) -> bool:
        return any(
            self.quarantines.get(place_, 0.0) > self.world.now for place_ in places
        )

    @rule(seconds=st.sampled_from([1.0, 25.0, 600.0]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @rule()
    def replay(self):
        """The view is the fold of the journal, and an event heard twice says nothing
        new.
        """
        self.world.view.release_delayed(0.0)
        once = View(usage=self.new_usage())
        twice = View(usage=self.new_usage())
        for event in self.world.journal:
            observe(once, event)
            observe(twice, event)
            observe(twice, event)
        for view in (once, twice, self.world.view):
            view.apply_quarantines(self.world.now)
            view.release_delayed(self.world.now)
            view.forget_ended()
        assert snapshot(once) == snapshot(self.world.view) == snapshot(twice)

    @invariant()
    def never_over_capacity(self):
        view = self.world.view
        shares = [
            share for attempt in view.attempts.values() for share in attempt.placements
        ]
        assert (
            max(
                Counter(uuid for share in shares for uuid in share.gpu_uuids).values(),
                default=1,
            )
            == 1
        )
        for node in view.nodes.values():
            here = [share for share in shares if share.node_id == node.id]
            assert sum(share.cpus for share in here) <= node.cpus + 1e-6
            assert sum(share.memory_gb for share in here) <= node.memory_gb + 1e-6
            assert set(node.bookings) == {
                key
                for key, attempt in view.attempts.items()
                if any(share.node_id == node.id for share in attempt.placements)
            }

    @invariant()
    def a_queued_job_is_in_one_place(self):
        view = self.world.view
        blocked = {child for children in view.dependents.values() for child in children}
        delayed = {job_id for _, job_id in view.delayed}
        ready = {job.id for job in view.queue}
        full = {turn[1] for array in view.arrays.values() for turn in array.waiting}
        places = [ready, delayed, view.held, full, blocked, set(view.tentative)]
        queued = [
            job_id for job_id, job in view.jobs.items() if job.state is JobState.QUEUED
        ]
        assert sorted(job_id for place_ in places for job_id in place_) == sorted(
            queued
        )
        assert set(view.doomed) <= blocked
        assert all(parent in self.outcomes for parent in view.ended)

    @invariant()
    def an_array_uses_its_limit_and_keeps_it(self):
        view = self.world.view
        for array_id, array in view.arrays.items():
            begun = {
                job_id
                for job_id in array.admitted
                if view.jobs[job_id].state is not JobState.QUEUED
            }
            # What ran when the limit was lowered goes on.
            assert len(array.admitted) <= max(array.at_most, len(begun))
            assert not array.waiting or len(array.admitted) >= array.at_most
            for job_id in array.admitted - begun:
                assert job_id in view.queue or job_id in view.tentative
            live = [job for job in view.jobs.values() if job.array_id == array_id]
            assert array.live == len(live)

    def teardown(self):
        """Nothing starves: once all is well and whatever runs ends, every job that can
        run does.
        """
        for node_id in NODES[: len(self.world.view.nodes)]:
            self.node_changes(node_id, "online")
        for uuid in GPUS if self.world.view.nodes else ():
            self.world.set_gpu(uuid, node_id=uuid.split("-")[1], state="idle")
        for place_ in PLACES:
            self.place_is_judged(place_, None)
        for reservation_id in list(self.world.view.advance.by_id):
            self.world.unreserve(reservation_id)
        for job_id in sorted(self.world.view.jobs):
            self.world.set_job(job_id, held=False)
        for _ in range(2 * len(self.outcomes) + 2):
            self.world.now += 100.0
            self.decide(run=True, look_again=True)
            for job_id in self.live():
                self.end(0, "completed")
                assert self.outcomes[job_id] == "completed"
        assert not self.world.view.attempts
        for job in self.world.view.jobs.values():
            is_never = job.waits_for or impossible(self.world.view, job.shape)
            assert is_never or self.is_over_quota(job), job

    def is_over_quota(self, job: LiveJob) -> bool:
        return False


Scheduler.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestScheduler = Scheduler.TestCase


class FairScheduler(Scheduler):
    """The same where shares count, and a quota."""

    order = QueueOrder.FAIR
    projects = (None, "vision", "other")
    owners = (None, "ana", "bob")
    deadlines = (None, 20.0, 500.0, None, 3000.0)

    def new_usage(self) -> Usage:
        projects = {
            "vision": ProjectShare(2.0, {"ana": 3.0}, organisation="physics"),
            "text": ProjectShare(),
        }
        rules = ShareRules(1000.0, projects, organisations={"physics": 2.0})
        quotas = Quotas({"bob": Quota(running_gpus=3)})
        return Usage(rules, quotas, by_share=True)

    def first_in_line(self) -> LiveJob | None:
        return next(heads_in_turn(self.world.view, self.world.now), None)

    def is_over_quota(self, job: LiveJob) -> bool:
        return job.owner == "bob" and job.width > 3

    @invariant()
    def what_is_held_is_counted(self):
        view = self.world.view
        gpus = Counter[str]()
        for attempt in view.attempts.values():
            job = view.jobs[attempt.job_id]
            gpus[job.owner or ""] += job.shape.gpus * job.shape.nodes
        for owner in self.owners:
            assert view.usage.gpus_of_user(owner or "") == gpus[owner or ""]
        assert gpus["bob"] <= 3


FairScheduler.TestCase.settings = Scheduler.TestCase.settings
TestFairScheduler = FairScheduler.TestCase
