"""The Job controller."""

import math
import time
from dataclasses import dataclass, field

from tests.support.kubernetes import indexes
from tests.support.kubernetes.admission import Admission
from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.deletion import delete
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.events import Recorder
from tests.support.kubernetes.failures import Verdict, judge
from tests.support.kubernetes.objects import (
    Object,
    deleting,
    ended,
    holds,
    name,
    namespace,
    owner,
    phase,
    set_condition,
    uid,
)
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.pods import TRACKING, pod_of
from tests.support.kubernetes.store import Store

_BACKOFF = Verdict(
    "BackoffLimitExceeded", "Job has reached the specified backoff limit"
)
_DEADLINE = Verdict("DeadlineExceeded", "Job was active longer than specified deadline")


@dataclass
class _Memory:
    """What the controller keeps of a Job beside its status: monotonic times, and how
    often it could not make pods.
    """

    started: float | None = None
    failed_at: float = 0.0
    done_at: float = 0.0
    refused: int = 0
    again_at: float = 0.0


@dataclass
class _Snapshot:
    """A Job and its pods as one pass sees them."""

    job: Object
    pods: list[Object]
    memory: _Memory
    draft: Object
    verdict: Verdict | None = None
    over: bool = False
    wakes: list[float] = field(default_factory=list[float])

    @property
    def spec(self) -> Object:
        return self.job["spec"]

    @property
    def status(self) -> Object:
        return self.draft["status"]

    @property
    def indexed(self) -> bool:
        return self.spec.get("completionMode") == "Indexed"

    @property
    def only_failed(self) -> bool:
        """Whether a pod is replaced only when it has failed, and not already while it
        ends.
        """
        return self.spec.get("podReplacementPolicy") == "Failed" or bool(
            self.spec.get("podFailurePolicy")
        )

    @property
    def active(self) -> list[Object]:
        return [pod for pod in self.pods if not ended(pod) and not deleting(pod)]

    @property
    def terminating(self) -> list[Object]:
        return [pod for pod in self.pods if not ended(pod) and deleting(pod)]

    def failed(self, pod: Object) -> bool:
        if phase(pod) == "Failed":
            return True
        if self.only_failed and not self.over:
            return deleting(pod) and phase(pod) == "Pending"
        return deleting(pod) and phase(pod) != "Succeeded"


class JobController(Controller):
    """Makes the pods of Jobs, counts how they end, and says when a Job is over."""

    def __init__(self, store: Store, options: Options, admission: Admission) -> None:
        super().__init__(store)
        self._options = options
        self._admission = admission
        self._recorder = Recorder(store, "job-controller")
        self._memory: dict[str, _Memory] = {}
        # By uid, the versions of a Job and its pods when they were looked at last, and
        # when to look again.
        self._seen: dict[str, tuple[list[str], float]] = {}

    def reconcile(self) -> float | None:
        mine: dict[str, list[Object]] = {}
        for pod in self.store.by_age("pods"):
            reference = owner(pod)
            if reference and reference["kind"] == "Job":
                mine.setdefault(reference["uid"], []).append(pod)
            elif TRACKING in (pod["metadata"].get("finalizers") or ()):
                self._release(pod)
        now = time.monotonic()
        again_at = math.inf
        for job in self.store.by_age("jobs"):
            again_at = min(again_at, self._look(job, mine.pop(uid(job), []), now))
        for pod in (pod for pods in mine.values() for pod in pods):
            self._release(pod)
        return max(0.0, again_at - now) if again_at < math.inf else None

    def _look(self, job: Object, pods: list[Object], now: float) -> float:
        """Sync a Job if it or a pod has changed, or its time has come; returns when to
        look again.
        """
        versions = [each["metadata"]["resourceVersion"] for each in (job, *pods)]
        seen, again_at = self._seen.get(uid(job), ([], 0.0))
        if versions != seen or now >= again_at:
            wakes = self._sync(job, pods)
            again_at = min([now + wake for wake in wakes], default=math.inf)
            self._seen[uid(job)] = (versions, again_at)
        return again_at

    def _sync(self, job: Object, pods: list[Object]) -> list[float]:
        finished = holds(job, "Complete") or holds(job, "Failed")
        if finished or deleting(job):
            for pod in pods:
                self._release(pod)
            if deleting(job):
                return []
        memory = self._memory.setdefault(uid(job), _Memory())
        with self.store.edit("jobs", job) as draft:
            snapshot = _Snapshot(job, pods, memory, draft)
            if finished:
                self._tally(snapshot)
            else:
                self._advance(snapshot)
        return snapshot.wakes

    def _advance(self, snapshot: _Snapshot) -> None:
        self._start(snapshot)
        self._count(snapshot)
        verdict = self._judge(snapshot)
        if verdict:
            self._fail(snapshot, verdict)
        elif self._done(snapshot):
            if self._is_due(snapshot):
                self._complete(snapshot)
        elif snapshot.spec.get("suspend"):
            self._suspend(snapshot)
        else:
            self._resume(snapshot)
            self._manage(snapshot)
        self._tally(snapshot)

    def _is_due(self, snapshot: _Snapshot) -> bool:
        """Whether the Job is marked now: a real controller takes its time."""
        memory = snapshot.memory
        memory.done_at = memory.done_at or time.monotonic()
        left = memory.done_at + self._options.job_mark_s - time.monotonic()
        if left > 0:
            snapshot.wakes.append(left)
        return left <= 0

    def _start(self, snapshot: _Snapshot) -> None:
        if not snapshot.spec.get("suspend") and not snapshot.status.get("startTime"):
            snapshot.status["startTime"] = self.clock.stamp()
        if not snapshot.spec.get("suspend") and snapshot.memory.started is None:
            snapshot.memory.started = time.monotonic()

    def _count(self, snapshot: _Snapshot) -> None:
        """Take the pods that have ended into the status, each once: then its finalizer
        goes.
        """
        for pod in snapshot.pods:
            if TRACKING not in (pod["metadata"].get("finalizers") or ()):
                continue
            if phase(pod) == "Succeeded":
                self._succeed(snapshot, pod)
                self._release(pod)
            elif snapshot.failed(pod):
                verdict = (
                    judge(snapshot.job, pod)
                    if phase(pod) == "Failed"
                    else Verdict("Count")
                )
                if verdict.action == "FailJob" and not snapshot.verdict:
                    snapshot.verdict = Verdict("PodFailurePolicy", verdict.message)
                if verdict.action != "Ignore":
                    snapshot.status["failed"] = snapshot.status.get("failed", 0) + 1
                    snapshot.memory.failed_at = time.monotonic()
                self._release(pod)

    def _succeed(self, snapshot: _Snapshot, pod: Object) -> None:
        if not snapshot.indexed:
            snapshot.status["succeeded"] = snapshot.status.get("succeeded", 0) + 1
            return
        done = indexes.parse(snapshot.status.get("completedIndexes", "")) | {
            indexes.index_of(pod) or 0
        }
        snapshot.status.update(completedIndexes=indexes.show(done), succeeded=len(done))

    def _judge(self, snapshot: _Snapshot) -> Verdict | None:
        """Why the Job fails, if it does."""
        target = next(
            (
                each
                for each in snapshot.status.get("conditions", [])
                if each["type"] == "FailureTarget"
            ),
            None,
        )
        if target:
            return Verdict(target["reason"], target["message"])
        if snapshot.verdict:
            return snapshot.verdict
        if snapshot.status.get("failed", 0) > snapshot.spec["backoffLimit"]:
            return _BACKOFF
        limit = snapshot.spec.get("activeDeadlineSeconds")
        if (
            limit is not None
            and not snapshot.spec.get("suspend")
            and snapshot.memory.started is not None
        ):
            left = snapshot.memory.started + limit - time.monotonic()
            if left <= 0:
                return _DEADLINE
            snapshot.wakes.append(left)
        return None

    def _fail(self, snapshot: _Snapshot, verdict: Verdict) -> None:
        stamp = self.clock.stamp()
        ending = {"reason": verdict.action, "message": verdict.message}
        if verdict.action == "PodFailurePolicy" or self._options.minor >= 31:
            set_condition(snapshot.draft, "FailureTarget", "True", stamp, **ending)
        for pod in snapshot.active:
            self._delete(snapshot, pod)
        snapshot.pods = [
            found for pod in snapshot.pods if (found := self.store.current("pods", pod))
        ]
        snapshot.over = self._options.minor < 31
        self._count(snapshot)
        if self._options.minor >= 31 and snapshot.terminating:
            return
        set_condition(snapshot.draft, "Failed", "True", stamp, **ending)
        self._recorder.warning(snapshot.job, verdict.action, verdict.message)

    def _done(self, snapshot: _Snapshot) -> bool:
        wanted = snapshot.spec.get("completions")
        succeeded = snapshot.status.get("succeeded", 0)
        if wanted is None:
            return succeeded > 0 and not snapshot.active and not snapshot.terminating
        return succeeded >= wanted

    def _complete(self, snapshot: _Snapshot) -> None:
        for pod in snapshot.active:
            self._delete(snapshot, pod)
        stamp = self.clock.stamp()
        set_condition(snapshot.draft, "Complete", "True", stamp)
        snapshot.status["completionTime"] = stamp
        self._recorder.normal(snapshot.job, "Completed", "Job completed")

    def _suspend(self, snapshot: _Snapshot) -> None:
        for pod in snapshot.active:
            self._release(pod)
            self._delete(snapshot, pod)
        if not holds(snapshot.draft, "Suspended"):
            set_condition(
                snapshot.draft,
                "Suspended",
                "True",
                self.clock.stamp(),
                reason="JobSuspended",
                message="Job suspended",
            )
            self._recorder.normal(snapshot.job, "Suspended", "Job suspended")
        snapshot.status.pop("startTime", None)
        snapshot.memory.started = None

    def _resume(self, snapshot: _Snapshot) -> None:
        if holds(snapshot.draft, "Suspended"):
            set_condition(
                snapshot.draft,
                "Suspended",
                "False",
                self.clock.stamp(),
                reason="JobResumed",
                message="Job resumed",
            )
            self._recorder.normal(snapshot.job, "Resumed", "Job resumed")

    def _manage(self, snapshot: _Snapshot) -> None:
        """Have as many pods as there should be."""
        busy = [
            *snapshot.active,
            *(snapshot.terminating if snapshot.only_failed else ()),
        ]
        wanted = self._wanted(snapshot)
        for pod in snapshot.active[wanted:] if len(busy) > wanted else ():
            self._release(pod)
            self._delete(snapshot, pod)
        missing = wanted - len(busy)
        if missing <= 0:
            return
        wait = self._wait_s(snapshot)
        if wait > 0:
            snapshot.wakes.append(wait)
            return
        taken = {indexes.index_of(pod) for pod in busy} | indexes.parse(
            snapshot.status.get("completedIndexes", "")
        )
        free = (
            each
            for each in range(snapshot.spec.get("completions") or 0)
            if each not in taken
        )
        for _ in range(missing):
            if not self._create(
                snapshot, next(free, None) if snapshot.indexed else None
            ):
                return

    def _wanted(self, snapshot: _Snapshot) -> int:
        parallelism = snapshot.spec["parallelism"]
        wanted = snapshot.spec.get("completions")
        if wanted is None:
            return (
                len(snapshot.active)
                if snapshot.status.get("succeeded")
                else parallelism
            )
        return min(parallelism, wanted - snapshot.status.get("succeeded", 0))

    def _wait_s(self, snapshot: _Snapshot) -> float:
        """How long until the next pod may be made, which doubles with each failure."""
        memory = snapshot.memory
        now = time.monotonic()
        failures = min(snapshot.status.get("failed", 0), 12)
        after = (
            memory.failed_at + self._options.job_backoff_s * 2 ** (failures - 1)
            if memory.failed_at
            else 0.0
        )
        return max(after, memory.again_at) - now

    def _create(self, snapshot: _Snapshot, index: int | None) -> bool:
        pod = pod_of(snapshot.job, index)
        try:
            made = self._admission.create("pods", namespace(snapshot.job), pod)
        except ApiError as error:
            snapshot.memory.refused += 1
            wait = min(
                self._options.job_backoff_s * 2 ** min(snapshot.memory.refused, 10),
                10.0,
            )
            snapshot.memory.again_at = time.monotonic() + wait
            snapshot.wakes.append(wait)
            self._recorder.warning(
                snapshot.job, "FailedCreate", f"Error creating: {error.message}"
            )
            return False
        snapshot.memory.refused = 0
        snapshot.pods.append(made)
        self._recorder.normal(
            snapshot.job, "SuccessfulCreate", f"Created pod: {name(made)}"
        )
        return True

    def _delete(self, snapshot: _Snapshot, pod: Object) -> None:
        delete(self.store, "pods", pod)
        self._recorder.normal(
            snapshot.job, "SuccessfulDelete", f"Deleted pod: {name(pod)}"
        )

    def _release(self, pod: Object) -> None:
        found = self.store.current("pods", pod)
        if found and TRACKING in (found["metadata"].get("finalizers") or ()):
            with self.store.edit("pods", found) as draft:
                draft["metadata"]["finalizers"] = [
                    each for each in draft["metadata"]["finalizers"] if each != TRACKING
                ]

    def _tally(self, snapshot: _Snapshot) -> None:
        """How many pods are at it now."""
        pods = [
            found for pod in snapshot.pods if (found := self.store.current("pods", pod))
        ]
        running = [pod for pod in pods if not ended(pod) and not deleting(pod)]
        ready = sum(holds(pod, "Ready") for pod in running)
        ending = sum(not ended(pod) and deleting(pod) for pod in pods)
        for key, value in (
            ("active", len(running)),
            ("ready", ready),
            ("terminating", ending),
        ):
            if value or key != "active":
                snapshot.status[key] = value
            else:
                snapshot.status.pop(key, None)
        snapshot.status.setdefault("uncountedTerminatedPods", {})
