"""Follows the Jobs on the cluster and their pods, and ends them.

The last known state of a pod that is gone is kept until its Job is forgotten: nothing
else tells how it ended.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.kubernetes import job_state, manifest, pod_state
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, name_of, text_at, value_at
from gpuyard.providers.kubernetes.watch import KubernetesWatch

# Between two looks at what the watches have, and between two requests.
_CHECK_S = 0.2
_LONGEST_PAUSE_S = 5.0
# A Job that the watch does not have is asked for, at most so often.
_ASK_S = 2.0
_COLLECT_S = 0.1
# The watch tells of a new Job within this time.
_EXPECTED_S = 2.0
# A deadline in the past: the cluster ends the pod at once.
_DEADLINE_S = 1
_FEW = 64


class JobTracker:
    """The Jobs of one account in one namespace."""

    def __init__(self, api: KubernetesApi, settings: KubernetesConfig) -> None:
        self._api = api
        self._settings = settings
        self._jobs = KubernetesWatch(
            api, api.jobs, manifest.OURS, self._job_gone, self._job_seen
        )
        self._pods = KubernetesWatch(
            api, api.pods, manifest.OURS, self._pod_gone, self._pod_seen
        )
        self._last_pods: dict[str, dict[str, Json]] = {}
        self._gone: dict[str, JobResult] = {}
        # Jobs that somebody has deleted, as they were last.
        self._deleted: dict[str, Json] = {}
        self._force_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._leaving_since: dict[str, float] = {}
        self._given_up: set[str] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}
        # Set, and replaced, when a watch reports something.
        self._change = asyncio.Event()
        self._has_news = False
        self._expected: set[str] = set()
        self._places = asyncio.Semaphore(settings.concurrency)

    async def ready(self) -> None:
        """Wait until the watches have their first lists; ProviderError if they fail."""
        await self._jobs.ready()
        await self._pods.ready()

    async def close(self) -> None:
        """Stop watching."""
        for task in self._ending.values():
            task.cancel()
        await asyncio.gather(self._jobs.close(), self._pods.close())

    def forget(self, name: str) -> None:
        """Drop what is kept of a Job."""
        for kept in self._kept():
            kept.pop(name, None)
        self._given_up.discard(name)
        self._expected.discard(name)

    def _kept(self) -> Sequence[dict[str, Any]]:
        """What is kept of Jobs, by their names."""
        return (
            self._last_pods,
            self._gone,
            self._deleted,
            self._force_at,
            self._asked_at,
            self._leaving_since,
        )

    def forget_others(self, wanted: Collection[str]) -> None:
        """Drop what is kept of Jobs that are neither `wanted` nor on the cluster.

        Events of forgotten Jobs may come late, and other instances have Jobs too.
        """
        for kept in self._kept():
            self._drop_others(kept, wanted)

    def _drop_others(self, kept: dict[str, Any], wanted: Collection[str]) -> None:
        if len(kept) <= 2 * len(wanted) + _FEW:
            return
        for name in list(kept):
            if name not in wanted and name not in self._jobs.objects:
                del kept[name]

    # --- what the watches report ---

    def _job_gone(self, job: Json) -> None:
        """Somebody deleted it, or we did before it had begun."""
        self._gone.setdefault(name_of(job), self._result_of_deleted(job))
        self._deleted[name_of(job)] = job
        self.tell_change()

    def _job_seen(self, _job: Json) -> None:
        self.tell_change()

    def tell_change(self) -> None:
        """Something is known that was not: whoever waits for news looks again."""
        self._has_news = True
        change = self._change
        self._change = asyncio.Event()
        change.set()

    async def news(self, timeout_s: float) -> None:
        """Return soon after the watches have reported something since the last call,
        and after `timeout_s` at the latest.
        """
        if not self._has_news:
            await self.change(timeout_s)
        if self._has_news:
            # Changes come in groups.
            await asyncio.sleep(_COLLECT_S)
        self._has_news = False

    async def change(self, timeout_s: float) -> None:
        """Wait until a watch reports something, at most this long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._change.wait(), timeout_s)

    def _result_of_deleted(self, job: Json, reason: str = "") -> JobResult:
        stop_reason = reason or job_state.stop_of(job)
        pods = self.last_pods(name_of(job)).values()
        result = job_state.result_of(job, pods, ())
        if result.status.is_over:
            return result
        is_cancelled = stop_reason in ("", Reason.CANCELLED)
        message = stop_reason or "somebody deleted its Job"
        if stop_reason == Reason.NODE_LOST:
            nodes = sorted({text_at(pod, "spec", "nodeName") for pod in pods})
            message = f"its node does not answer ({', '.join(nodes)})"
        return replace(
            result,
            status=JobStatus.CANCELLED if is_cancelled else JobStatus.FAILED,
            reason=stop_reason,
            error_message=message,
            completed_at=time.time(),
        )

    def _pod_seen(self, pod: Json) -> None:
        self._last_pods.setdefault(_job_of(pod), {})[name_of(pod)] = pod
        self.tell_change()

    def _pod_gone(self, pod: Json) -> None:
        self._pod_seen(pod_state.gone(pod))

    def last_pods(self, name: str) -> Mapping[str, Json]:
        """The last known state of each pod of a Job, by the pod's name."""
        return self._last_pods.get(name, {})

    def watched(self, name: str) -> Json | None:
        """The Job as the watch has it; None when it has none of that name, or one that
        is as good as gone.
        """
        job = self._jobs.objects.get(name)
        if job is None or name in self._given_up:
            return None
        is_leaving = bool(value_at(job, "metadata", "deletionTimestamp"))
        if is_leaving and not self.has_live_pods(name):
            # Finalizers may hold it for long.
            if name not in self._gone:
                self._job_gone(job)
            return None
        return job

    def has_live_pods(self, name: str) -> bool:
        """Whether a pod of the Job runs, or may begin to, by what the watch has."""
        return any(map(pod_state.is_live, self.last_pods(name).values()))

    def is_pod_over(self, name: str, pod_name: str) -> bool:
        """Whether nothing of the pod runs any more, by what the watch has."""
        if name in self._given_up:
            return True
        pod = self.last_pods(name).get(pod_name)
        return pod is not None and not pod_state.is_live(pod)

    def is_given_up(self, name: str) -> bool:
        """Whether its pods were deleted by force: nothing can be read from them."""
        return name in self._given_up

    def is_on_lost_node(self, name: str) -> bool:
        """Whether a pod should have left long ago: its node does not answer.

        This is measured by the monotonic clock, from when the pod was first seen to
        leave.
        """
        pods = self.last_pods(name).values()
        graces = [_grace_s(pod) for pod in pods if _is_leaving(pod)]
        if not graces:
            self._leaving_since.pop(name, None)
            return False
        now = time.monotonic()
        since = self._leaving_since.setdefault(name, now)
        return now - since >= max(graces) + self._settings.node_lost_s

    def knows(self, name: str) -> bool:
        """Whether the watch has the Job, or has had it."""
        return self.watched(name) is not None or name in self._gone

    def result_once_gone(self, name: str) -> JobResult | None:
        """How a Job ended that is gone; None for one that the watch never had.

        It counts as running while the watch has live pods of it.
        """
        return self._ended(name, self.pods_there(name))

    def pods_there(self, name: str) -> list[Json]:
        """The pods of a Job that exist, as the watch has them."""
        return [pod for pod in self._pods.objects.values() if _job_of(pod) == name]

    def _ended(self, name: str, pods: Sequence[Json]) -> JobResult | None:
        result = self._gone.get(name)
        if result is None or name in self._given_up:
            return result
        if any(map(pod_state.is_live, pods)):
            return replace(result, status=JobStatus.RUNNING)
        job = self._deleted.get(name)
        if job is None or job_state.stop_of(job):
            return result
        last_pods = list(self.last_pods(name).values())
        return job_state.result_of_orphans(result, job, last_pods)

    # --- requests ---

    async def pods_of(self, name: str) -> dict[str, Json]:
        """The pods that a Job has now, by name."""
        pods, _ = await self._api.list_objects(
            self._api.pods, labelSelector=f"batch.kubernetes.io/job-name={name}"
        )
        found = {name_of(pod): pod for pod in pods}
        for pod_name, pod in list(self.last_pods(name).items()):
            if pod_name not in found:
                self._pod_gone(pod)
        for pod in pods:
            self._pod_seen(pod)
        return found

    async def fetch(self, name: str) -> tuple[Json | None, JobResult]:
        """The Job (None once it is gone) and its state now; JobNotFoundError."""
        job = await self._api.call_or_none("GET", f"{self._api.jobs}/{name}")
        pods = await self.pods_of(name)
        if job is not None and name not in self._given_up:
            return job, job_state.result_of(job, self.last_pods(name).values(), ())
        if job is None and pods and name not in self._gone:
            # It was deleted while nobody watched, and its pods are still there.
            self._job_gone(job_state.job_of_pods(name, list(pods.values())))
        result = self._ended(name, list(pods.values()))
        if result is None:
            raise JobNotFoundError(name, self._settings.provider)
        return None, result

    async def look_for(self, name: str) -> Json | None:
        """Ask for a Job that the watch does not have; None if the cluster does not know
        it, or was asked a moment ago.

        A Job that it knows shows that the watches are behind: they begin again.
        """
        now = time.monotonic()
        # The watch may have a new Job in a moment.
        asked_at = self._asked_at.setdefault(name, now)
        if now - asked_at < _ASK_S:
            return None
        self._asked_at[name] = now
        try:
            async with self._places:
                job, _ = await self.fetch(name)
        except JobNotFoundError:
            return None
        if job is not None:
            await self._jobs.catch_up()
            await self._pods.catch_up()
        return job

    def expect(self, name: str) -> None:
        """The Job was just made: the watch is about to tell of it."""
        self._expected.add(name)

    async def known(self, name: str) -> tuple[Json | None, JobResult]:
        """As `fetch`, but without a request if the watch has the Job."""
        give_up_at = time.monotonic() + _EXPECTED_S
        while (
            name in self._expected
            and self.watched(name) is None
            and time.monotonic() < give_up_at
        ):
            await self.change(_EXPECTED_S)
        self._expected.discard(name)
        job = self.watched(name)
        if job is None:
            return await self.fetch(name)
        return job, job_state.result_of(job, self.last_pods(name).values(), ())

    # --- ending ---

    async def stop(
        self,
        name: str,
        reason: str,
        *,
        checkpoint: bool,
        force_after_s: float | None = None,
    ) -> bool:
        """End a Job with TERM, and by force if that does not help in time.

        With `checkpoint` it gets its checkpoint signal and grace first. False when it
        is over.
        """
        job, result = await self.fetch(name)
        if result.status.is_over:
            return False
        if job is None:
            await self.delete_orphans(name)
            return True
        if not job_state.stop_of(job) or reason == Reason.CANCELLED:
            path = f"{self._api.jobs}/{name}"
            note = {"annotations": {manifest.STOP: reason}}
            # Without the limit of 0 the cluster would run it again.
            change = {"metadata": note, "spec": {"backoffLimit": 0}}
            job = await self._api.call_or_none("PATCH", path, change) or job
        limits = job_state.limits_of(job)
        may_save = checkpoint and limits.signal
        grace_s = (limits.grace_s or 0.0) if may_save else 0.0
        if force_after_s is None:
            force_after_s = self._settings.force_after_s
        force_at = time.monotonic() + grace_s + force_after_s
        self._force_at[name] = min(force_at, self._force_at.get(name, force_at))
        if any(map(pod_state.has_begun, self.last_pods(name).values())):
            await self._set_deadlines(name)
        else:
            await self.drop(job, reason)
        self.end_in_background(name)
        return True

    async def drop(self, job: Json, reason: str) -> None:
        """Delete a Job that has not run, or whose pods are gone: there is no output."""
        name = name_of(job)
        self._gone.setdefault(name, self._result_of_deleted(job, reason))
        await self._api.call_or_none(
            "DELETE", f"{self._api.jobs}/{name}", propagationPolicy="Background"
        )

    async def _set_deadlines(self, name: str) -> list[str]:
        """Give its live pods a deadline in the past; returns their names.

        The cluster then ends the pods, and keeps their output.
        """
        pods = await self.pods_of(name)
        live = {key: pod for key, pod in pods.items() if pod_state.is_live(pod)}
        for pod_name, pod in live.items():
            if value_at(pod, "spec", "activeDeadlineSeconds") != _DEADLINE_S:
                path = f"{self._api.pods}/{pod_name}"
                body = {"spec": {"activeDeadlineSeconds": _DEADLINE_S}}
                await self._api.call_or_none("PATCH", path, body)
        return list(live)

    async def delete_orphans(self, name: str) -> None:
        """Delete the pods that were kept when their Job was deleted."""
        for pod in filter(pod_state.is_orphan, self.pods_there(name)):
            path = f"{self._api.pods}/{name_of(pod)}"
            await self._api.call_or_none("DELETE", path)

    def force_in_background(self, name: str) -> None:
        """Start a task that deletes its pods by force: their node does not answer."""
        self._force_at[name] = time.monotonic()
        self.end_in_background(name)

    def end_in_background(self, name: str) -> None:
        """Start a task that ends the Job's pods and returns once none is live."""
        if name not in self._ending:
            task = asyncio.create_task(self._end_pods(name), name=f"end-pods-{name}")
            self._ending[name] = task
            task.add_done_callback(lambda _: self._ending.pop(name, None))

    async def _end_pods(self, name: str) -> None:
        pause_s = _CHECK_S
        while True:
            force_at = self._force_at.setdefault(
                name, time.monotonic() + self._settings.force_after_s
            )
            with suppress(ProviderError):
                live = await self._set_deadlines(name)
                if not live:
                    return
                if time.monotonic() >= force_at:
                    await self._give_up(name, live)
                    return
            await self._until_ended(name, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _until_ended(self, name: str, pause_s: float) -> None:
        """Wait until the watch has no live pods of it any more, or force is due; for
        `pause_s` at most.
        """
        began = time.monotonic()
        while True:
            await asyncio.sleep(_CHECK_S)
            now = time.monotonic()
            force_at = self._force_at.get(name, now)
            is_force_due = began < force_at <= now
            is_over = is_force_due or not self.has_live_pods(name)
            if is_over or now - began >= pause_s:
                return

    async def _give_up(self, name: str, pods: Sequence[str]) -> None:
        """Delete its pods by force, then the Job: a node does not answer.

        Only without the Job does the cluster remove such pods.
        """
        for pod_name in pods:
            path = f"{self._api.pods}/{pod_name}"
            await self._api.call_or_none("DELETE", path, gracePeriodSeconds=0)
        job = await self._api.call_or_none("GET", f"{self._api.jobs}/{name}")
        if job is not None:
            await self.drop(job, "")
        self._given_up.add(name)


def _is_leaving(pod: Json) -> bool:
    is_deleted = bool(value_at(pod, "metadata", "deletionTimestamp"))
    return is_deleted and pod_state.is_live(pod)


def _grace_s(pod: Json) -> float:
    """How long a pod that is to leave may save its work before it gets TERM."""
    grace_s = float(value_at(pod, "metadata", "deletionGracePeriodSeconds") or 0)
    return max(grace_s - manifest.TERM_GRACE_S, 0.0)


def _job_of(pod: Json) -> str:
    return text_at(pod, "metadata", "labels", "batch.kubernetes.io/job-name")
