"""What is known of the Jobs on the cluster and their pods, and how one is ended.

Of a pod that is gone the newest sight is kept until its Job is forgotten: it is all that will ever tell how it ended.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.providers.kubernetes import manifest, reading
from gpuyard.providers.kubernetes.api import Api
from gpuyard.providers.kubernetes.fields import Json, at, name_of, text
from gpuyard.providers.kubernetes.watch import Watch

OVER = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
_FORCE_S = 15.0
_LOOK_S = 0.2
_DEADLINE_S = 1
_FEW = 64


class Jobs:
    """The Jobs of one account in one namespace."""

    def __init__(self, api: Api, provider: str) -> None:
        self._api, self._provider = api, provider
        self._jobs = Watch(api, api.jobs, manifest.OURS, self._job_gone)
        self._pods = Watch(api, api.pods, manifest.OURS, self._pod_gone, self._pod_seen)
        self._sights: dict[str, dict[str, Json]] = {}
        self._gone: dict[str, JobResult] = {}
        self._force_at: dict[str, float] = {}
        self._seeing_out: dict[str, asyncio.Task[None]] = {}

    async def ready(self) -> None:
        """Wait until the watches know all there is; ProviderError while they cannot."""
        await self._jobs.ready()
        await self._pods.ready()

    async def close(self) -> None:
        """Stop watching."""
        for task in self._seeing_out.values():
            task.cancel()
        await asyncio.gather(self._jobs.close(), self._pods.close())

    def forget(self, name: str) -> None:
        """Nobody asks for this one any more."""
        for known in (self._sights, self._gone, self._force_at):
            known.pop(name, None)

    def tidy(self, wanted: Collection[str]) -> None:
        """Let go of what was seen of others: of those forgotten, of which word may come late, and of another yard's."""
        for known in (self._sights, self._gone, self._force_at):
            if len(known) > 2 * len(wanted) + _FEW:
                for name in [name for name in known if name not in wanted and self.watched(name) is None]:
                    del known[name]

    # --- what is seen ---

    def _job_gone(self, job: Json) -> None:
        """Somebody deleted it, or we did because it had not begun."""
        self._gone.setdefault(name_of(job), self._deleted(job))

    def _deleted(self, job: Json, reason: str = "") -> JobResult:
        stop = reason or reading.stop_of(job)
        result = reading.result_of(job, self.sights(name_of(job)).values(), ())
        if result.status in OVER:
            return result
        status = JobStatus.FAILED if stop and stop != "cancelled" else JobStatus.CANCELLED
        why = stop or "somebody deleted its Job"
        return replace(result, status=status, reason=stop, error_message=why, completed_at=time.time())

    def _pod_seen(self, pod: Json) -> None:
        self._sights.setdefault(_job_of(pod), {})[name_of(pod)] = pod

    def _pod_gone(self, pod: Json) -> None:
        self._pod_seen(reading.gone(pod))

    def sights(self, name: str) -> Mapping[str, Json]:
        """The newest sight of each of its pods, by name."""
        return self._sights.get(name, {})

    def watched(self, name: str) -> Json | None:
        """The Job as the watch has it; None when it has none of that name."""
        return self._jobs.objects.get(name)

    def once_gone(self, name: str) -> JobResult | None:
        """How one ended whose Job is gone, as the watches have it; it runs while its pods do. None if it never was."""
        mine = [pod for pod in self._pods.objects.values() if _job_of(pod) == name]
        return self._ended(name, mine)

    def _ended(self, name: str, pods: Iterable[Json]) -> JobResult | None:
        result = self._gone.get(name)
        live = result is not None and any(map(reading.is_live, pods))
        return replace(result, status=JobStatus.RUNNING) if result and live else result

    # --- what is asked for ---

    async def pods_of(self, name: str) -> dict[str, Json]:
        """The pods that a Job has now, by name."""
        pods, _ = await self._api.items(self._api.pods, labelSelector=f"batch.kubernetes.io/job-name={name}")
        found = {name_of(pod): pod for pod in pods}
        for pod_name, pod in list(self.sights(name).items()):
            if pod_name not in found:
                self._pod_gone(pod)
        for pod in pods:
            self._pod_seen(pod)
        return found

    async def now(self, name: str) -> tuple[Json | None, JobResult]:
        """The Job (None once it is gone) and where it is this moment; JobNotFoundError."""
        job = await self._api.found("GET", f"{self._api.jobs}/{name}")
        pods = await self.pods_of(name)
        if job is not None:
            return job, reading.result_of(job, self.sights(name).values(), ())
        result = self._ended(name, pods.values())
        if result is None:
            raise JobNotFoundError(name, self._provider)
        return None, result

    # --- how one is ended ---

    async def stop(self, name: str, reason: str, *, kindly: bool) -> bool:
        """Have it end: by TERM, after its checkpoint signal if `kindly`, in the end by force. False once it is over."""
        job, result = await self.now(name)
        if result.status in OVER or job is None:
            return False
        if not reading.stop_of(job) or reason == "cancelled":
            note = {"metadata": {"annotations": {manifest.STOP: reason}}}
            job = await self._api.found("PATCH", f"{self._api.jobs}/{name}", note) or job
        limits = reading.limits_of(job)
        grace_s = limits.grace_s if kindly and limits.signal else 0.0
        force_at = time.monotonic() + grace_s + _FORCE_S
        self._force_at[name] = min(force_at, self._force_at.get(name, force_at))
        if any(map(reading.has_begun, self.sights(name).values())):
            await self._set_deadlines(name)
        else:
            await self.drop(job, reason)
        self.see_out(name)
        return True

    async def drop(self, job: Json, reason: str) -> None:
        """End a Job of which nothing has run: there is nothing to keep."""
        self._gone.setdefault(name_of(job), self._deleted(job, reason))
        await self._api.found("DELETE", f"{self._api.jobs}/{name_of(job)}", propagationPolicy="Background")

    async def _set_deadlines(self, name: str) -> list[str]:
        """The cluster ends pods whose deadline has passed, and keeps their output. The names of those that live."""
        live = {key: pod for key, pod in (await self.pods_of(name)).items() if reading.is_live(pod)}
        for pod_name, pod in live.items():
            if at(pod, "spec", "activeDeadlineSeconds") != _DEADLINE_S:
                body = {"spec": {"activeDeadlineSeconds": _DEADLINE_S}}
                await self._api.found("PATCH", f"{self._api.pods}/{pod_name}", body)
        return list(live)

    def see_out(self, name: str) -> None:
        """Whoever is on its way out is not left alone until it is gone."""
        if name not in self._seeing_out:
            task = self._seeing_out[name] = asyncio.create_task(self._until_gone(name), name=f"see-out-{name}")
            task.add_done_callback(lambda _: self._seeing_out.pop(name, None))

    async def _until_gone(self, name: str) -> None:
        force_at = self._force_at.setdefault(name, time.monotonic() + _FORCE_S)
        while True:
            with suppress(ProviderError):
                live = await self._set_deadlines(name)
                if not live:
                    return
                if time.monotonic() >= force_at:
                    await self._force(live)
            await asyncio.sleep(_LOOK_S)

    async def _force(self, pods: Sequence[str]) -> None:
        for pod_name in pods:
            await self._api.found("DELETE", f"{self._api.pods}/{pod_name}", gracePeriodSeconds=0)


def _job_of(pod: Json) -> str:
    return text(pod, "metadata", "labels", "batch.kubernetes.io/job-name")
