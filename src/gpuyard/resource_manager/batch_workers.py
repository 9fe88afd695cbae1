"""The workers of batches: submits their jobs and cancels those that wait.

A worker is a job of kind `worker`. So booking, logs, cost and recovery work as for any
job.
"""

from collections.abc import Iterator

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.controller.intake import PreparedJob, Template
from gpuyard.controller.requests import Requests
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec, Resources
from gpuyard.domain.own_options import WorkerOrder
from gpuyard.domain.scripts import WORKER_FIELDS
from gpuyard.resource_manager.batch import Batch, Worker


class BatchWorkers:
    """Submits and cancels workers."""

    def __init__(self, core: Core, requests: Requests) -> None:
        self._core = core
        self._requests = requests

    def submit(self, batch: Batch, gpu: str | None) -> None:
        """Submit a worker, for this GPU or (None) for any."""
        spec = self.spec(batch, gpu)
        job = PreparedJob.of(Template.of(spec, ()), spec)
        self._core.emit([transitions.submitted(job, self._core.clock())])
        batch.workers[job.id] = Worker(job.id, gpu, batch.code)

    def spec(self, batch: Batch, gpu: str | None) -> JobSpec:
        """The job of a worker."""
        row = batch.row
        script = batch.script
        settings = script.model_dump(mode="json", include=WORKER_FIELDS)
        order = WorkerOrder(settings, batch.id, row["results"], gpu)
        request = GpuRequest(
            count=script.gpus,
            memory_gb=script.memory_gb if script.gpus else None,
            uuid=(gpu,) if gpu else (),
        )
        spec = JobSpec(
            name=f"worker {batch.id}"[:200],
            kind=JobKind.WORKER,
            script=row["script"],
            priority=row["priority"],
            args={**script.args, **row["args"]},
            environment=row["environment"],
            secrets={**script.secrets, **(row["secrets"] or {})},
            resources=Resources(gpus=request),
            provider_options=order.to_options(),
            project=batch.owner.project,
            submitted_code=batch.code or None,
            labels={"batch": batch.id},
        )
        if batch.owner.user:
            spec = spec.model_copy(update={"user": batch.owner.user})
        return spec

    def waiting(self, batch: Batch) -> Iterator[Worker]:
        """The workers of the batch that have no place yet."""
        for worker in batch.workers.values():
            job = self._core.view.jobs.get(worker.job_id)
            if job and job.attempt_id is None and not worker.cancelled:
                yield worker

    def cancel(self, worker: Worker) -> None:
        """Cancel a worker that waits."""
        worker.cancelled = True
        self.cancel_job(worker.job_id)

    def cancel_waiting(self, batch: Batch, most: int) -> None:
        """Cancel at most so many of the workers that wait."""
        for worker in list(self.waiting(batch))[:most]:
            self.cancel(worker)

    def cancel_other_code(self, batch: Batch) -> None:
        """Cancel those that wait and would load code that the batch has no more."""
        for worker in list(self.waiting(batch)):
            if worker.code != batch.code:
                self.cancel(worker)

    def cancel_job(self, job_id: str) -> None:
        """Cancel the job of a worker in the background."""
        self._core.spawn(self._requests.cancel(job_id), "cancel-worker")
