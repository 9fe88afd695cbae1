"""The provider `kubernetes`: a Job for each attempt, named after it, so that the cluster itself refuses a second one.

Jobs and pods are watched, not asked for. A job that is to end is told so in an annotation first, then its pods get a
deadline that has passed: so the cluster ends them as it does at any deadline, and their output stays to be read.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from gpuyard.domain.errors import InsufficientResourcesError, JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface, SavedFile
from gpuyard.providers.carrying import Way, Workspaces
from gpuyard.providers.kubernetes import manifest, reading
from gpuyard.providers.kubernetes.api import Api, ApiError
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, at, name_of, text
from gpuyard.providers.kubernetes.jobs import OVER, Jobs
from gpuyard.providers.kubernetes.output import merged
from gpuyard.providers.kubernetes.spool import Spool
from gpuyard.providers.kubernetes.supply import Supply, supplies
from gpuyard.providers.saving import Saving, by_itself
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.place import in_background, open_store

# Why a pod waits is asked for this often; nobody needs it sooner.
_EVENTS_S = 5.0
_LOOK_S = 0.2


class KubernetesProvider(GpuProviderInterface):
    """Jobs on a Kubernetes cluster. `config`: see `KubernetesConfig`."""

    PROVIDER_NAME: ClassVar[str] = "kubernetes"
    containers: ClassVar[bool] = True
    wants_storage: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = self._read(config)
        self.concurrency, self.poll_s = self.settings.concurrency, self.settings.poll_s
        self.max_pending = self.settings.max_pending
        self.doing: Mapping[str, str] = {}
        self._folder = Path(self.settings.home) / self.PROVIDER_NAME
        self._api = self._connection()
        self._spool = self._make_spool() if self.settings.spool else None
        self._saving = Saving()
        self._jobs = Jobs(self._api, self.PROVIDER_NAME)
        self._supply: dict[str, Supply] = {}
        self._events: dict[str, tuple[float, list[Json]]] = {}
        self._partial: dict[str, float] = {}

    def _read(self, config: Mapping[str, Any]) -> KubernetesConfig:
        return KubernetesConfig.read(config)

    def _connection(self) -> Api:
        return Api(self.settings, self.PROVIDER_NAME)

    def _make_spool(self) -> Spool:
        snapshots = BlobStore(self._folder / "snapshots")
        root = Path(self.settings.spool or "").expanduser()
        blobs = open_store(Path(self.settings.home), self.settings.storage)
        workspaces = Workspaces(Way(self.PROVIDER_NAME), self._folder / "workspaces")
        return Spool(root, snapshots, blobs, workspaces, self.PROVIDER_NAME)

    async def close(self) -> None:
        """See GpuProviderInterface."""
        await self._jobs.close()
        await self._api.close()

    # --- submitting ---

    async def submit_job(self, job_config: JobConfig) -> str:
        """Make the Job and what it refers to; one that is there already is left as it is."""
        config = job_config.model_copy(update={"attempt_id": job_config.attempt_id or new_id("attempt")})
        if not config.image:
            raise ProviderError("The job names no image.", self.PROVIDER_NAME, "NO_IMAGE")
        if not self._supply:
            await self.offers()
        chosen = await self._chosen(config)
        fitting = self._fitting(config, [chosen] if chosen else list(self._supply.values()))
        nodes = int(config.provider_options.get("nodes") or 1)
        price = fitting.offer.hourly(config.gpu_spec.gpu_count, config.gpu_spec.vcpus or 1.0, nodes) or Decimal(0)
        body = manifest.job_of(config, self.settings, chosen.selector if chosen else {}, price)
        try:
            if self._spool:
                await in_background(self._spool.lay_out, config)
                await self._spool.send_workspace(config)
            await self._make(config, body)
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                await self.forget_job(name_of(body))
            raise self._refusal(error, config) from None
        return name_of(body)

    async def _chosen(self, config: JobConfig) -> Supply | None:
        """What it is sent to; None when that is anywhere. InsufficientResourcesError when that is no more."""
        wanted = str(config.provider_options.get("offer") or "")
        if wanted and wanted not in self._supply:
            await self.offers()
        if wanted and wanted not in self._supply:
            message = f"{wanted} is not on offer any more."
            raise InsufficientResourcesError(message, self.PROVIDER_NAME, config.gpu_spec)
        return self._supply.get(wanted)

    async def _make(self, config: JobConfig, body: Json) -> None:
        """The Job, which waits; what it refers to; then it may begin. What is there already is left as it is."""
        path = f"{self._api.jobs}/{name_of(body)}"
        job = await self._made(self._api.jobs, body) or await self._api.call("GET", path)
        for kind, part in manifest.parts_of(config, job).items():
            await self._made(f"{self._api.namespaced}/{kind}", part)
        if not self.settings.queue and reading.waits_for_us(job):
            await self._api.call("PATCH", path, {"spec": {"suspend": False}})

    async def _made(self, path: str, body: Json) -> Json | None:
        """The new object; None when there is one of its name."""
        try:
            return await self._api.call("POST", path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return None

    def _fitting(self, config: JobConfig, supply: Sequence[Supply]) -> Supply:
        """The first that can hold it: a pod that no node can ever hold would wait there for ever."""
        need = config.gpu_spec
        for one in supply:
            fits = one.offer.cpus >= (need.vcpus or 0) and one.offer.memory_gb >= (need.ram_gb or 0)
            if fits and one.offer.gpus >= need.gpu_count:
                return one
        wanted = f"{need.gpu_count} GPUs, {need.vcpus or 0:g} cores and {need.ram_gb or 0:g} GB"
        raise InsufficientResourcesError(f"No node of the cluster has {wanted}.", self.PROVIDER_NAME, need)

    def _refusal(self, error: ProviderError, config: JobConfig) -> ProviderError:
        if isinstance(error, ApiError) and error.http == 403 and "exceeded quota" in str(error):
            return InsufficientResourcesError(str(error), self.PROVIDER_NAME, config.gpu_spec)
        return error

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Its name tells. One that still waits for what it refers to has not been submitted whole."""
        name = manifest.name_of(attempt_id)
        job = await self._api.found("GET", f"{self._api.jobs}/{name}")
        return None if job is None or reading.waits_for_us(job) else name

    # --- asking ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """From what the watches keep: no request at all, but for why a job waits."""
        await self._jobs.ready()
        self._jobs.tidy(job_ids)
        found: dict[str, JobResult] = {}
        for name in job_ids:
            job = self._jobs.watched(name)
            result = self._jobs.once_gone(name) if job is None else await self._look(name, job)
            if result is not None:
                found[name] = result
        return found

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        job, result = await self._jobs.now(job_id)
        return result if job is None else await self._look(job_id, job)

    async def _look(self, name: str, job: Json) -> JobResult:
        pods = self._jobs.sights(name)
        result = reading.result_of(job, pods.values(), ())
        if result.status is JobStatus.PENDING or result.reason == "no_image":
            result = reading.result_of(job, pods.values(), await self._said(name, list(pods)))
        if result.reason == "no_image" or reading.is_put_back(job, pods.values()):
            await self._jobs.drop(job, result.reason)
        elif result.status not in OVER:
            await self._tend(name, job, result)
        shift = self._api.ahead_s
        times = {key: at - shift for key in ("created_at", "started_at", "completed_at")
                 if (at := getattr(result, key)) is not None}  # fmt: skip
        return replace(result, **times)

    async def _said(self, name: str, pods: Sequence[str]) -> list[Json]:
        """The warnings about a Job and its pods, the newest last."""
        at, known = self._events.get(name, (-_EVENTS_S, []))
        if time.monotonic() - at < _EVENTS_S:
            return known
        found: list[Json] = []
        with suppress(ApiError):
            for item in (name, *pods[:1]):
                events, _ = await self._api.items(
                    f"{self._api.namespaced}/events", fieldSelector=f"involvedObject.name={item},type=Warning"
                )
                found += events
        found.sort(key=lambda event: text(event, "lastTimestamp"))
        self._events[name] = time.monotonic(), found
        return found

    async def _tend(self, name: str, job: Json, result: JobResult) -> None:
        """What the time calls for: its timeout, and a gang of which only a part has a place."""
        if reading.stop_of(job):
            self._jobs.see_out(name)
            return
        limits = reading.limits_of(job)
        if result.started_at is not None:
            self._partial.pop(name, None)
            if limits.timeout_s and time.time() + self._api.ahead_s - result.started_at >= limits.timeout_s:
                await self._jobs.stop(name, "timed_out", kindly=True)
            return
        placed = sum(map(reading.is_placed, self._jobs.sights(name).values()))
        if not 0 < placed < int(at(job, "spec", "parallelism") or 1):
            self._partial.pop(name, None)
        elif time.monotonic() - self._partial.setdefault(name, time.monotonic()) >= self.settings.gang_patience_s:
            await self._jobs.stop(name, "revoked", kindly=False)

    # --- ending ---

    async def cancel_job(self, job_id: str) -> bool:
        """TERM, its grace, KILL."""
        return await self._jobs.stop(job_id, "cancelled", kindly=False)

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See Queues."""
        return await self._jobs.stop(job_id, "preempted" if checkpoint else "cancelled", kindly=checkpoint)

    async def forget_job(self, job_id: str) -> None:
        """Remove the Job, with its pods and what it referred to, and its folder."""
        await self._api.found("DELETE", f"{self._api.jobs}/{job_id}", propagationPolicy="Background")
        if self._spool:
            await self._spool.forget(job_id)
        self._jobs.forget(job_id)
        self._saving.forget(job_id)
        for known in (self._events, self._partial):
            known.pop(job_id, None)

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """See SavesCheckpoints: what it wrote in its folder, where that is on a volume that this host shares."""
        job, result = await self._jobs.now(job_id)
        limits = reading.limits_of(job) if job else None
        if self._spool is None or limits is None or not limits.path or result.started_at is None:
            return []
        began = result.started_at - self._api.ahead_s
        over = result.status in OVER and by_itself(result.exit_code, result.reason)
        work = self._spool.work(job_id)
        return await asyncio.to_thread(self._saving.look, job_id, work, limits.path, began, over=over)

    async def bring_back(self, job_id: str) -> None:
        """See BringsBack."""
        if self._spool:
            await self._spool.fetch_workspace(job_id)

    # --- output ---

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface; of a gang, share after share."""
        pods = await self._shares(job_id)
        if lines == 0:
            return ""
        query = {} if lines is None else {"tailLines": lines}
        parts = [await self._log_of(pod, **query) for pod in pods]
        text = b"".join(parts).decode(errors="replace")
        return text if lines is None or len(parts) < 2 else "".join(text.splitlines(keepends=True)[-lines:])

    async def _log_of(self, pod: str, **query: Any) -> bytes:
        try:
            return await self._api.content(self._log_path(pod), **query)
        except ApiError as error:
            if error.http in (400, 404):  # it has not begun, or is gone
                return b""
            raise

    def _log_path(self, pod: str) -> str:
        return f"{self._api.pods}/{pod}/log"

    async def _shares(self, job_id: str) -> list[str]:
        """The names of its pods that are there, the first share first; JobNotFoundError for a job that never was."""
        await self._jobs.now(job_id)
        pods = await self._jobs.pods_of(job_id)
        return sorted(pods, key=lambda name: reading.index_of(pods[name]))

    async def stream_logs(self, job_id: str, *, lines: int | None, follow: bool) -> AsyncIterator[bytes]:
        """See StreamsLogs; the lines of a gang's shares as they come."""
        if not follow:
            yield (await self.get_job_logs(job_id, lines)).encode()
            return
        while (await self._jobs.now(job_id))[1].status is JobStatus.PENDING:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(_LOOK_S)
        query: dict[str, Any] = {"follow": "true"} | ({} if lines is None else {"tailLines": lines})
        sources = [self._api.stream(self._log_path(pod), **query) for pod in await self._shares(job_id)]
        if not sources:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        async for part in merged(sources):
            yield part

    # --- supply ---

    async def offers(self) -> Sequence[Offer]:
        """The kinds of nodes, and the configured pools."""
        await self._know_cluster()
        try:
            nodes, _ = await self._api.items("/api/v1/nodes")
        except ApiError as error:
            if error.http != 403 or not self.settings.pools:
                raise
            nodes = []  # an account that may not see nodes knows what its pools are told to be
        self._supply = {found.offer.id: found for found in await self._supplies(nodes)}
        return [found.offer for found in self._supply.values()]

    async def _supplies(self, nodes: Sequence[Json]) -> Sequence[Supply]:
        return supplies(nodes, self.settings, self.PROVIDER_NAME)

    async def _know_cluster(self) -> None:
        """Refuse to go on in another cluster: what was sent to the one before would seem to be lost."""
        try:
            space = await self._api.call("GET", self._api.namespaced)
        except ApiError as error:
            if error.http == 403:
                return  # an account that may not ask is believed
            raise
        uid, known = text(space, "metadata", "uid"), self._folder / "cluster"
        before = known.read_text() if known.exists() else uid
        if before != uid:
            message = (f"This is another cluster than before (its namespace {self.settings.namespace} is {uid} and was "
                       f"{before}). Give providers.{self.PROVIDER_NAME} its old kubeconfig while it has jobs; to go "
                       f"over to the new one, delete {known}.")  # fmt: skip
            raise ProviderError(message, self.PROVIDER_NAME, "NOT_CONNECTED")
        if uid and not known.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            known.write_text(uid)

    async def list_available_gpus(self) -> list[GpuSpec]:
        """See GpuProviderInterface."""
        return [
            GpuSpec(gpu_type=offer.gpu or "gpu", gpu_count=offer.gpus, memory_gb=offer.gpu_gb or None,
                    vcpus=offer.cpus or None, ram_gb=offer.memory_gb or None)
            for offer in await self.offers() if offer.gpus
        ]  # fmt: skip

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """Seconds at the price of its offer."""
        job, result = await self._jobs.now(job_id)
        now = float(
            int(time.time() + self._api.ahead_s)
        )  # Kubernetes counts in whole seconds, and a cost may not shrink at the end
        seconds = (result.completed_at or now) - result.started_at if result.started_at else 0.0
        price = reading.price_of(job) if job else Decimal(0)
        total = price * Decimal(str(max(seconds, 0.0))) / 3600
        return CostInfo(job_id, total, self.settings.currency, {"compute": total})

    async def health_check(self) -> dict[str, Any]:
        """Healthy while the API answers and the account may do what is needed."""
        try:
            version = (await self._api.call("GET", "/version")).get("gitVersion")
            missing = [need async for need in self._missing_rights()]
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        if missing:
            message = f"its account may not {', '.join(missing)}; see deploy/kubernetes/rbac.yaml"
            return {"status": "degraded", "message": message, "version": version}
        return {"status": "healthy", "version": version}

    async def _missing_rights(self) -> AsyncIterator[str]:
        for group, resource, verb in _RIGHTS:
            wish = {"namespace": self.settings.namespace, "group": group, "resource": resource.partition("/")[0],
                    "subresource": resource.partition("/")[2], "verb": verb}  # fmt: skip
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                      "spec": {"resourceAttributes": wish}}  # fmt: skip
            answer = await self._api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            if not at(answer, "status", "allowed"):
                yield f"{verb} {resource}"


_RIGHTS = (
    ("batch", "jobs", "create"), ("batch", "jobs", "watch"), ("batch", "jobs", "patch"), ("batch", "jobs", "delete"),
    ("batch", "jobs", "get"), ("batch", "jobs", "list"), ("", "pods", "list"),
    ("", "pods", "watch"), ("", "pods", "patch"), ("", "pods", "delete"), ("", "pods/log", "get"),
    ("", "secrets", "create"), ("", "services", "create"), ("", "events", "list"),
)  # fmt: skip
