"""Saves the artifacts of attempts that have ended in external queues, from those of
their folders that this host sees, or that come back to it.
"""

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from gpuyard.controller.artifacts import Artifacts
from gpuyard.controller.core import Core
from gpuyard.domain.artifacts import ArtifactOrder, ArtifactsSaved
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.jobspec import JobSpec
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.job_folders import LeftFolder, WantedFiles
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.storage.artifact_saving import ArtifactSaver
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background

# The clock of a node may be so far ahead of the one that stamps its files.
_CLOCK_MARGIN_S = 1.0
log = structlog.get_logger(__name__)


class LeftFiles:
    """Saves what jobs have left there. `home` is gpuyard's own."""

    def __init__(
        self, core: Core, artifacts: Artifacts, blobs: Blobs, home: Path
    ) -> None:
        self._core = core
        self._artifacts = artifacts
        self._blobs = blobs
        self._home = home

    async def save(
        self,
        attempt: LiveAttempt,
        spec: JobSpec | None,
        provider: GpuProviderInterface,
        shown: Callable[[str], str],
    ) -> bool:
        """Save the artifacts of an ended attempt; False if that failed and can be tried
        again. `shown` hides secrets.
        """
        if spec is None or not spec.artifacts:
            return True
        order = ArtifactOrder(list(spec.artifacts), spec.artifacts_always)
        reference = attempt.provider_ref or ""
        try:
            result = (await provider.poll_jobs([reference])).get(reference)
            if result is None or not _has_artifacts(result, order):
                return True
            folder = await provider.left_folder(reference, self._wanted(spec))
            if folder is None:
                problem = f"{attempt.provider} does not show what the job has left"
                messages = [ArtifactsSaved(attempt.id, time.time(), [], [problem])]
            else:
                # A workdir need not be the same folder on the nodes. Here it may be one
                # that only gpuyard can read.
                private = self._home if spec.workdir and not folder.own else None
                saver = self._saver(attempt, order, shown, private)
                messages = await self._saved(saver, folder, result)
                problems = [shown(problem) for problem in folder.problems]
                if problems:
                    told = ArtifactsSaved(attempt.id, time.time(), [], problems)
                    messages.append(told)
            for message in messages:
                self._artifacts.saved(attempt, message)
            await self._core.committed()
        except (ProviderError, LedgerError, OSError) as error:
            log.warning(
                "artifacts could not be saved", attempt=attempt.id, error=str(error)
            )
            return False
        return True

    def _wanted(self, spec: JobSpec) -> WantedFiles:
        most_bytes = int(self._core.settings.node.artifacts_gb * 1e9)
        return WantedFiles(spec.artifacts, most_bytes, spec.workdir)

    def _saver(
        self,
        attempt: LiveAttempt,
        order: ArtifactOrder,
        shown: Callable[[str], str],
        private: Path | None,
    ) -> ArtifactSaver:
        # A job in a container can make links that lead to files of this host, which it
        # cannot read itself.
        return ArtifactSaver(
            attempt.id,
            order,
            self._core.settings.node,
            self._blobs,
            owner=None,
            linked_folders=False,
            shown=shown,
            private=private,
        )

    async def _saved(
        self, saver: ArtifactSaver, folder: LeftFolder, result: JobResult
    ) -> list[ArtifactsSaved]:
        since = folder.since
        if since is None:
            since = (result.started_at or 0.0) - _CLOCK_MARGIN_S
        return await in_background(saver.save, folder.path, since)


def _has_artifacts(result: JobResult, order: ArtifactOrder) -> bool:
    if result.started_at is None or result.status.is_live:
        return False
    return result.status is JobStatus.COMPLETED or order.always
