"""The provider `kubernetes`: each attempt is a Job.

The Job's name comes from the attempt's id, so that the cluster refuses a second one.
Jobs and pods are watched, not polled. To stop a Job, gpuyard notes the reason in an
annotation and gives its pods a deadline in the past: the cluster then ends the pods and
keeps their output.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    ProviderError,
)
from gpuyard.domain.jobconfig import CostInfo, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.domain.reasons import Reason
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.providers.base import (
    TRANSIENT,
    GpuProviderInterface,
    OutputPart,
    QueueProvider,
    SavedFile,
    with_logs,
)
from gpuyard.providers.checkpoint_files import CheckpointFinder, ended_by_itself
from gpuyard.providers.cost import cost_of
from gpuyard.providers.job_folders import LeftFolder, LoggingFolder, WantedFiles
from gpuyard.providers.kubernetes import job_state, manifest, pod_state
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.api_errors import ApiError
from gpuyard.providers.kubernetes.cluster_checks import ClusterChecks
from gpuyard.providers.kubernetes.command import PodCommand, start_in_pod
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.creation import create_once
from gpuyard.providers.kubernetes.event_reader import WarningReader
from gpuyard.providers.kubernetes.fields import Json, name_of, value_at
from gpuyard.providers.kubernetes.job_output import JobOutput
from gpuyard.providers.kubernetes.job_tracker import JobTracker
from gpuyard.providers.kubernetes.places import Places
from gpuyard.providers.kubernetes.pool import KubernetesPool
from gpuyard.providers.kubernetes.rights import is_about_rights
from gpuyard.providers.kubernetes.spool import KubernetesSpool
from gpuyard.providers.kubernetes.supply import Supply, supplies
from gpuyard.providers.pool_hands import PoolOwner
from gpuyard.providers.rsync import RsyncHost, WorkspaceSync
from gpuyard.providers.runner_files import BrokenFileError
from gpuyard.providers.running_times import RunningTimes
from gpuyard.providers.spool_datasets import SpoolDatasets
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.place import in_background, open_store

_NEVER_BEGINS = (Reason.NO_IMAGE, Reason.SUBMIT_FAILED)


class KubernetesProvider(QueueProvider):
    """Jobs on a Kubernetes cluster. `config`: see `KubernetesConfig`."""

    PROVIDER_NAME: ClassVar[str] = "kubernetes"
    containers: ClassVar[bool] = True
    wants_storage: ClassVar[bool] = True
    output_moves: ClassVar[bool] = True
    runs_commands: bool = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = self._read(config)
        self.concurrency = self.settings.concurrency
        self.poll_s = self.settings.poll_s
        self.answer_age_s = self.settings.watch_silence_s + self.settings.timeout_s
        self.max_pending = self.settings.max_pending
        self.currency = self.settings.currency
        self._folder = Path(self.settings.home) / self.PROVIDER_NAME
        self._api = self._connection()
        self._spool = self._make_spool() if self.settings.spool else None
        self._checkpoints = CheckpointFinder()
        self._jobs = JobTracker(self._api, self.settings)
        self._output = JobOutput(self._api, self._jobs, self.settings)
        self._places = Places(self.settings, self.PROVIDER_NAME, self.offers)
        self._checks = ClusterChecks(
            self._api, self.settings, self.PROVIDER_NAME, self._folder / "cluster"
        )
        self._events = WarningReader(
            self._api, self.settings.concurrency, self._jobs.tell_change
        )
        self._partly_placed_since: dict[str, float] = {}
        self._running_times = RunningTimes()

    def _read(self, config: Mapping[str, Any]) -> KubernetesConfig:
        return KubernetesConfig.read(config)

    def _connection(self) -> KubernetesApi:
        return KubernetesApi(self.settings, self.PROVIDER_NAME)

    def _make_spool(self) -> KubernetesSpool:
        snapshots = BlobStore(self._folder / "snapshots")
        root = Path(self.settings.spool or "").expanduser()
        blobs = open_store(Path(self.settings.home), self.settings.storage)
        this_host = RsyncHost(self.PROVIDER_NAME)
        workspaces = WorkspaceSync(this_host, self._folder / "workspaces")
        datasets = SpoolDatasets(
            root,
            manifest.DATASETS,
            self.settings.dataset_cache_gb,
            Path(self.settings.home),
            self.settings.storage,
            self.PROVIDER_NAME,
        )
        return KubernetesSpool(
            root, snapshots, blobs, workspaces, datasets, self.PROVIDER_NAME
        )

    async def close(self) -> None:
        """See GpuProviderInterface."""
        self._events.close()
        await self._jobs.close()
        await self._api.close()

    # --- submitting ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Make the Job and the objects it refers to, unless they exist."""
        if not order.image:
            message = "The job names no image."
            raise ProviderError(message, self.PROVIDER_NAME, "NO_IMAGE")
        target = await self._places.target(order)
        body = manifest.job_of(order, self.settings, target)
        try:
            if self._spool:
                await in_background(self._spool.stage_in, order)
                await self._spool.send_workspace(order)
            await self._create_all(order, body)
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                await self.forget_job(name_of(body))
            raise self._refusal(error, order) from None
        self._jobs.expect(name_of(body))
        return name_of(body)

    async def _create_all(self, order: AttemptOrder, body: Json) -> None:
        """Make the Job, suspended, then the objects it refers to; then resume it.

        Objects that exist are not changed.
        """
        path = f"{self._api.jobs}/{name_of(body)}"
        job = await create_once(self._api, self._api.jobs, body)
        job = job or await self._api.call("GET", path)
        for kind, part in manifest.parts_of(order, job).items():
            await create_once(self._api, f"{self._api.namespaced}/{kind}", part)
        if not self.settings.queue and job_state.is_incomplete(job):
            await self._api.call("PATCH", path, {"spec": {"suspend": False}})

    def _refusal(self, error: ProviderError, order: AttemptOrder) -> ProviderError:
        forbidden = isinstance(error, ApiError) and error.http == 403
        if forbidden and "exceeded quota" in str(error):
            return InsufficientResourcesError(
                str(error), self.PROVIDER_NAME, order.gpu_spec
            )
        if forbidden and is_about_rights(str(error)):
            # An API server that has just started does not know all Roles yet.
            return ProviderError(str(error), self.PROVIDER_NAME, "NOT_CONNECTED")
        return error

    # --- beside a job ---

    async def start_command(self, job_id: str, request: RunCommand) -> PodCommand:
        """See GpuProviderInterface. A gang's first pod runs it."""
        pods = await self._jobs.pods_of(job_id)
        running = [pod for pod in pods.values() if pod_state.is_running(pod)]
        if not running:
            message = f"No pod of {job_id} runs."
            raise ProviderError(message, self.PROVIDER_NAME, "NOT_RUNNING")
        first = min(running, key=pod_state.order_of)
        return await start_in_pod(self._api, name_of(first), request)

    @property
    def _kubectl(self) -> str:
        file = self.settings.kubeconfig
        choice = f" --kubeconfig {file}" if file else ""
        return f"kubectl{choice} -n {self.settings.namespace}"

    def forward_by_hand(self, job_id: str, port: int) -> str:
        """See GpuProviderInterface."""
        return f"Type `{self._kubectl} port-forward job/{job_id} {port}`."

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """The name of the attempt's Job, if it exists.

        A Job whose Secret or Service may be missing was not submitted completely.
        """
        name = manifest.name_of(attempt_id)
        job = await self._api.call_or_none("GET", f"{self._api.jobs}/{name}")
        return None if job is None or job_state.is_incomplete(job) else name

    # --- polling ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """From the watches. Only the reason why a job waits takes a request, and a Job
        that they do not have.
        """
        try:
            await self._jobs.ready()
        except ProviderError:
            self._checks.doubt()
            raise
        self._jobs.forget_others(job_ids)
        # A watch whose connection is dead, or that is slow, misses new Jobs.
        missing = [name for name in job_ids if not self._jobs.knows(name)]
        found = await asyncio.gather(*map(self._jobs.look_for, missing))
        looked_up = dict(zip(missing, found, strict=True))
        results: dict[str, JobResult] = {}
        for name in job_ids:
            result = await self._polled(name, looked_up.get(name))
            if result is not None:
                results[name] = result
        return results

    async def news(self, timeout_s: float) -> None:
        """See GpuProviderInterface."""
        await self._jobs.news(timeout_s)

    async def _polled(self, name: str, looked_up: Json | None) -> JobResult | None:
        job = self._jobs.watched(name)
        if job is None:
            result = self._jobs.result_once_gone(name)
            if result is not None:
                if self._jobs.is_on_lost_node(name):
                    self._jobs.force_in_background(name)
                return result
            job = looked_up
        return None if job is None else await self._updated(name, job)

    def has_run(self, job_id: str, ran_s: float) -> None:
        """See GpuProviderInterface."""
        self._running_times.note_running(job_id, ran_s)

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        job, result = await self._jobs.fetch(job_id)
        if job is not None:
            result = await self._update(job_id, job)
        return await with_logs(self, result)

    async def _updated(self, name: str, job: Json) -> JobResult:
        """As `_update`; a Job with broken annotations is ended, and has failed."""
        try:
            return await self._update(name, job)
        except BrokenFileError as error:
            result = error.result(name)
            await self._jobs.drop(job, result.reason)
            return result

    async def _update(self, name: str, job: Json) -> JobResult:
        """The state of a Job, after ending it if its time is over."""
        pods = self._jobs.last_pods(name)
        result = job_state.result_of(job, pods.values(), ())
        if result.status is JobStatus.PENDING or result.reason == Reason.NO_IMAGE:
            events = self._events.warnings(name, list(pods))
            result = job_state.result_of(job, pods.values(), events)
        self._places.avoid(pod_state.refusing_nodes(pods.values()))
        is_requeued = job_state.is_requeued(job, pods.values())
        if is_requeued or result.reason in _NEVER_BEGINS:
            await self._jobs.drop(job, result.reason)
        elif not result.status.is_over:
            await self._enforce_limits(name, job, result)
        return self._in_our_time(result)

    def _in_our_time(self, result: JobResult) -> JobResult:
        """With the cluster's times shifted to our clock."""
        shifted: dict[str, float] = {}
        for field in ("created_at", "started_at", "completed_at"):
            cluster_time = getattr(result, field)
            if cluster_time is not None:
                shifted[field] = cluster_time - self._api.ahead_s
        return replace(result, **shifted)

    async def _enforce_limits(self, name: str, job: Json, result: JobResult) -> None:
        """End a Job at its timeout, when its node does not answer, or when only some of
        its pods get a node.
        """
        if job_state.stop_of(job):
            if self._jobs.has_live_pods(name):
                self._jobs.end_in_background(name)
        elif self._jobs.is_on_lost_node(name):
            await self._jobs.stop(
                name, Reason.NODE_LOST, checkpoint=False, force_after_s=0
            )
        elif result.started_at is None:
            self._running_times.note_waiting(name)
            await self._withdraw_if_partly_placed(name, job)
        else:
            self._partly_placed_since.pop(name, None)
            timeout_s = job_state.limits_of(job).timeout_s
            by_wall_clock_s = time.time() + self._api.ahead_s - result.started_at
            ran_s = self._running_times.ran_s(name, by_wall_clock_s)
            if timeout_s and ran_s >= timeout_s:
                await self._jobs.stop(name, Reason.TIMED_OUT, checkpoint=True)

    async def _withdraw_if_partly_placed(self, name: str, job: Json) -> None:
        placed = sum(map(pod_state.is_placed, self._jobs.last_pods(name).values()))
        wanted = int(value_at(job, "spec", "parallelism") or 1)
        if not 0 < placed < wanted:
            self._partly_placed_since.pop(name, None)
            return
        now = time.monotonic()
        since = self._partly_placed_since.setdefault(name, now)
        if now - since >= self.settings.gang_patience_s:
            await self._jobs.stop(name, Reason.REVOKED, checkpoint=False)

    # --- ending ---

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See GpuProviderInterface."""
        reason = Reason.PREEMPTED if checkpoint else Reason.CANCELLED
        return await self._jobs.stop(job_id, reason, checkpoint=checkpoint)

    async def forget_job(self, job_id: str) -> None:
        """Remove the Job, its pods, the objects it refers to, and its folder."""
        job = await self._api.call_or_none(
            "DELETE", f"{self._api.jobs}/{job_id}", propagationPolicy="Background"
        )
        if job is None and any(map(pod_state.is_orphan, self._jobs.pods_there(job_id))):
            await self._remove_orphans(job_id)
        if self._spool:
            await self._spool.forget(job_id)
        self._jobs.forget(job_id)
        self._checkpoints.forget(job_id)
        self._events.forget(job_id)
        self._partly_placed_since.pop(job_id, None)
        self._running_times.forget(job_id)

    async def _remove_orphans(self, job_id: str) -> None:
        """Remove what stays when somebody deletes a Job with `--cascade=orphan`."""
        await self._jobs.delete_orphans(job_id)
        for kind in ("secrets", "services"):
            path = f"{self._api.namespaced}/{kind}/{job_id}"
            await self._api.call_or_none("DELETE", path)

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """The checkpoints in its folder, if this host shares the volume."""
        if self._spool is None:
            return []
        job, result = await self._jobs.known(job_id)
        if job is None or result.started_at is None:
            return []
        pattern = job_state.limits_of(job).path
        if not pattern:
            return []
        since = result.started_at - self._api.ahead_s
        # A program that had to leave, and exited with 0, has saved its work.
        has_saved = ended_by_itself(result.exit_code, result.reason)
        over = result.status.is_over and (has_saved or result.exit_code == 0)
        work = self._spool.work(job_id)
        return await asyncio.to_thread(
            self._checkpoints.find, job_id, work, pattern, since, over=over
        )

    async def left_folder(self, job_id: str, wanted: WantedFiles) -> LeftFolder | None:
        """See GpuProviderInterface."""
        return LeftFolder(self._spool.work(job_id)) if self._spool else None

    async def logging_folder(
        self, job_id: str, workdir: str | None
    ) -> LoggingFolder | None:
        """See GpuProviderInterface."""
        return LoggingFolder(self._spool.work(job_id)) if self._spool else None

    async def bring_back(self, job_id: str) -> None:
        """See GpuProviderInterface."""
        if self._spool:
            await self._spool.fetch_workspace(job_id)

    # --- output ---

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface; a gang's logs come one after another."""
        return await self._output.text(job_id, lines)

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See GpuProviderInterface; the lines of a gang's pods come as they arrive."""
        if not follow:
            yield (await self.get_job_logs(job_id, lines)).encode()
            return
        if await self._output.runs_again(job_id):
            parts = GpuProviderInterface.stream_logs(
                self, job_id, lines=lines, follow=True
            )
            async for part in parts:
                yield part
            return
        async for part in self._output.follow(job_id, "", lines):
            yield part.data

    async def stream_output(
        self, job_id: str, *, mark: str
    ) -> AsyncIterator[OutputPart]:
        """See GpuProviderInterface; a mark has the position in the log of each pod."""
        # A mark that is a number is a byte: earlier versions kept no more.
        if mark.isdigit() or await self._output.runs_again(job_id):
            parts = GpuProviderInterface.stream_output(self, job_id, mark=mark)
        else:
            parts = self._output.follow(job_id, mark)
        async for part in parts:
            yield part

    # --- supply ---

    def pool_hands(self, settings: PoolSettings, owner: PoolOwner) -> KubernetesPool:
        """See GpuProviderInterface."""
        return KubernetesPool(settings, self.settings, self._api, self._supply, owner)

    async def offers(self) -> Sequence[Offer]:
        """One offer for each kind of node and each configured pool."""
        return [supply.offer for supply in await self._supply()]

    async def _supply(self) -> Sequence[Supply]:
        await self._checks.check()
        try:
            nodes, _ = await self._api.list_objects("/api/v1/nodes")
        except ApiError as error:
            if error.http != 403 or not self.settings.pools:
                raise
            # An account that may not list nodes offers only its configured pools.
            nodes = []
        found = await self._supplies(nodes)
        self._places.update(found)
        return found

    async def _supplies(self, nodes: Sequence[Json]) -> Sequence[Supply]:
        return supplies(nodes, self.settings, self.PROVIDER_NAME)

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """The seconds it has run, at the price of its offer."""
        job, result = await self._jobs.fetch(job_id)
        price = job_state.price_of(job) if job else Decimal(0)
        # Kubernetes counts whole seconds, and a cost must not shrink at the end.
        now = float(int(time.time() + self._api.ahead_s))
        return cost_of(result, price, self.currency, now)

    async def health_check(self) -> dict[str, Any]:
        """See GpuProviderInterface."""
        return await self._checks.health()
