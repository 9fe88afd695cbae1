"""Follows the Jobs on the cluster and their pods, and ends them.

The last known state of a pod that is gone is kept until its Job is forgotten: nothing
else tells how it ended.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.kubernetes import job_state, manifest
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.fields import Json, name_of, text_at, value_at
from gpuyard.providers.kubernetes.watch import KubernetesWatch

# A Job that has to end is deleted by force this long after its grace.
_FORCE_S = 15.0
_CHECK_S = 0.2
_COLLECT_S = 0.1
# The watch tells of a new Job within this time.
_EXPECTED_S = 2.0
# A deadline in the past: the cluster ends the pod at once.
_DEADLINE_S = 1
_FEW = 64


class JobTracker:
    """The Jobs of one account in one namespace."""

    def __init__(self, api: KubernetesApi, provider: str) -> None:
        self._api = api
        self._provider = provider
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
        self._ending: dict[str, asyncio.Task[None]] = {}
        # Set, and replaced, when a watch reports something.
        self._change = asyncio.Event()
        self._has_news = False
        self._expected: set[str] = set()

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
        self._last_pods.pop(name, None)
        self._gone.pop(name, None)
        self._deleted.pop(name, None)
        self._expected.discard(name)
        self._force_at.pop(name, None)

    def forget_others(self, wanted: Collection[str]) -> None:
        """Drop what is kept of Jobs that are neither `wanted` nor on the cluster.

        Events of forgotten Jobs may come late, and other instances have Jobs too.
        """
        self._drop_others(self._last_pods, wanted)
        self._drop_others(self._gone, wanted)
        self._drop_others(self._deleted, wanted)
        self._drop_others(self._force_at, wanted)

    def _drop_others(self, kept: dict[str, Any], wanted: Collection[str]) -> None:
        if len(kept) <= 2 * len(wanted) + _FEW:
            return
        for name in list(kept):
            if name not in wanted and self.watched(name) is None:
                del kept[name]

    # --- what the watches report ---

    def _job_gone(self, job: Json) -> None:
        """Somebody deleted it, or we did before it had begun."""
        self._gone.setdefault(name_of(job), self._result_of_deleted(job))
        self._deleted[name_of(job)] = job
        self._tell_change()

    def _job_seen(self, _job: Json) -> None:
        self._tell_change()

    def _tell_change(self) -> None:
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
        return replace(
            result,
            status=JobStatus.CANCELLED if is_cancelled else JobStatus.FAILED,
            reason=stop_reason,
            error_message=stop_reason or "somebody deleted its Job",
            completed_at=time.time(),
        )

    def _pod_seen(self, pod: Json) -> None:
        self._last_pods.setdefault(_job_of(pod), {})[name_of(pod)] = pod
        self._tell_change()

    def _pod_gone(self, pod: Json) -> None:
        self._pod_seen(job_state.gone(pod))

    def last_pods(self, name: str) -> Mapping[str, Json]:
        """The last known state of each pod of a Job, by the pod's name."""
        return self._last_pods.get(name, {})

    def watched(self, name: str) -> Json | None:
        """The Job as the watch has it; None when it has none of that name."""
        return self._jobs.objects.get(name)

    def result_once_gone(self, name: str) -> JobResult | None:
        """How a Job ended that is gone; None for one that never was.

        It counts as running while the watch has live pods of it.
        """
        return self._ended(name, self.pods_there(name))

    def pods_there(self, name: str) -> list[Json]:
        """The pods of a Job that exist, as the watch has them."""
        return [pod for pod in self._pods.objects.values() if _job_of(pod) == name]

    def _ended(self, name: str, pods: Iterable[Json]) -> JobResult | None:
        result = self._gone.get(name)
        if result is None:
            return None
        if any(map(job_state.is_live, pods)):
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
        if job is not None:
            return job, job_state.result_of(job, self.last_pods(name).values(), ())
        result = self._ended(name, pods.values())
        if result is None:
            raise JobNotFoundError(name, self._provider)
        return None, result

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

    async def stop(self, name: str, reason: str, *, checkpoint: bool) -> bool:
        """End a Job with TERM, and by force if that does not help.

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
        force_at = time.monotonic() + grace_s + _FORCE_S
        self._force_at[name] = min(force_at, self._force_at.get(name, force_at))
        if any(map(job_state.has_begun, self.last_pods(name).values())):
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
        live = {key: pod for key, pod in pods.items() if job_state.is_live(pod)}
        for pod_name, pod in live.items():
            if value_at(pod, "spec", "activeDeadlineSeconds") != _DEADLINE_S:
                path = f"{self._api.pods}/{pod_name}"
                body = {"spec": {"activeDeadlineSeconds": _DEADLINE_S}}
                await self._api.call_or_none("PATCH", path, body)
        return list(live)

    async def delete_orphans(self, name: str) -> None:
        """Delete the pods that were kept when their Job was deleted."""
        for pod in filter(job_state.is_orphan, self.pods_there(name)):
            path = f"{self._api.pods}/{name_of(pod)}"
            await self._api.call_or_none("DELETE", path)

    def end_in_background(self, name: str) -> None:
        """Start a task that ends the Job's pods and returns once none is live."""
        if name not in self._ending:
            task = asyncio.create_task(self._end_pods(name), name=f"end-pods-{name}")
            self._ending[name] = task
            task.add_done_callback(lambda _: self._ending.pop(name, None))

    async def _end_pods(self, name: str) -> None:
        force_at = self._force_at.setdefault(name, time.monotonic() + _FORCE_S)
        while True:
            with suppress(ProviderError):
                live = await self._set_deadlines(name)
                if not live:
                    return
                if time.monotonic() >= force_at:
                    await self._force(live)
            await asyncio.sleep(_CHECK_S)

    async def _force(self, pods: Sequence[str]) -> None:
        for pod_name in pods:
            path = f"{self._api.pods}/{pod_name}"
            await self._api.call_or_none("DELETE", path, gracePeriodSeconds=0)


def _job_of(pod: Json) -> str:
    return text_at(pod, "metadata", "labels", "batch.kubernetes.io/job-name")
