"""The output of a Job: that of its pod, or of all pods of a gang."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.base import TRANSIENT, OutputPart, last_lines
from gpuyard.providers.kubernetes import job_state, pod_state
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.api_errors import ApiError
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json, text_at
from gpuyard.providers.kubernetes.job_tracker import JobTracker
from gpuyard.providers.kubernetes.log_lines import (
    TimedPosition,
    mark_of,
    positions_of,
)
from gpuyard.providers.kubernetes.manifest import CONTAINER
from gpuyard.providers.kubernetes.output import merged
from gpuyard.providers.kubernetes.pod_log import PodLog

_CHECK_S = 0.2
# A program may write faster than its output is read. Then so much of it must do.
_ENOUGH_S = 5.0
# The name of a pod, a part of its output, and the position behind that.
_PodPart = tuple[str, bytes, TimedPosition]


class JobOutput:
    """Reads and follows the output of Jobs."""

    def __init__(
        self, api: KubernetesApi, jobs: JobTracker, settings: KubernetesConfig
    ) -> None:
        self._api = api
        self._jobs = jobs
        self._settings = settings

    async def text(self, job_id: str, lines: int | None) -> str:
        """The output so far, or its last lines; a gang's logs one after another."""
        pods = await self._existing_pods(job_id)
        if lines == 0:
            return ""
        query = {} if lines is None else {"tailLines": lines}
        parts = [await self._log_of(name, pod, **query) for name, pod in pods]
        text = b"".join(parts).decode(errors="replace")
        if lines is None or len(parts) < 2:
            return text
        return last_lines(text, lines)

    async def _existing_pods(self, job_id: str) -> list[tuple[str, Json]]:
        """Its existing pods with their names, by their index.

        JobNotFoundError for an unknown job.
        """
        await self._jobs.fetch(job_id)
        pods = await self._jobs.pods_of(job_id)
        return sorted(pods.items(), key=lambda item: pod_state.order_of(item[1]))

    async def _log_of(self, name: str, pod: Json, **query: Any) -> bytes:
        is_running = text_at(pod, "status", "phase") == "Running"
        enough_s = _ENOUGH_S if is_running else None
        try:
            path = self._log_path(name)
            return await self._api.read(path, enough_s, container=CONTAINER, **query)
        except ApiError as error:
            if error.http in (400, 404):  # it has not begun, or is gone
                return b""
            raise

    def _log_path(self, pod: str) -> str:
        return f"{self._api.pods}/{pod}/log"

    async def runs_again(self, job_id: str) -> bool:
        """Whether the cluster runs the program again when it fails. This waits until
        the job has begun.

        JobNotFoundError for an unknown job.
        """
        job = await self._begun(job_id)
        return job is not None and job_state.runs_again(job)

    async def _begun(self, job_id: str) -> Json | None:
        """Wait until a Job has begun, and return it; None if it is gone.

        While the server does not answer, this waits, too.
        """
        while True:
            pause_s = _CHECK_S
            try:
                await self._jobs.ready()
                job = self._jobs.watched(job_id)
                if job is None:
                    pause_s = self._settings.poll_s
                    job, result = await self._jobs.fetch(job_id)
                else:
                    pods = self._jobs.last_pods(job_id)
                    result = job_state.result_of(job, pods.values(), ())
                if result.status is not JobStatus.PENDING:
                    return job
            except ProviderError as error:
                if error.error_code not in TRANSIENT:
                    raise
            await asyncio.sleep(pause_s)

    async def follow(
        self, job_id: str, mark: str, lines: int | None = None
    ) -> AsyncIterator[OutputPart]:
        """The output of a job that has begun, until its end: what is behind `mark`, or
        the last lines of each pod. The lines of a gang's pods come as they arrive.
        """
        positions = positions_of(mark)
        pods = self._jobs.last_pods(job_id)
        names = sorted(pods, key=lambda name: pod_state.order_of(pods[name]))
        if not names:
            raise JobNotFoundError(job_id, self._settings.provider)
        is_gang = len(names) > 1
        sources = [
            self._follow_pod(
                job_id, name, positions.get(name, TimedPosition()), lines, whole=is_gang
            )
            for name in names
        ]
        async for pod, data, position in merged(sources):
            positions[pod] = position
            yield OutputPart(data, lambda: mark_of(positions))

    async def _follow_pod(
        self,
        job_id: str,
        pod: str,
        begin: TimedPosition,
        lines: int | None,
        *,
        whole: bool,
    ) -> AsyncIterator[_PodPart]:
        position = begin.copy()
        log = PodLog(
            self._api,
            self._log_path(pod),
            whole=whole,
            is_over=lambda: self._jobs.is_pod_over(job_id, pod),
            is_lost=lambda: self._jobs.is_given_up(job_id),
            silence_s=self._settings.log_silence_s,
            patience_s=self._settings.timeout_s,
        )
        async for data in log.follow(position, lines):
            yield pod, data, position.copy()
