"""The provider `slurm`: jobs on a Slurm cluster.

A Slurm job runs `node/runner/` on a folder that the cluster's nodes and this host
share. Slurm tells whether a job waits or runs. The runner writes its output, exit code
and end time to the folder. So accounting is not needed, and no exit code is guessed.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.domain.reasons import Reason
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.providers.attempt_folder import AttemptFolder, read_json, runner_order
from gpuyard.providers.base import (
    TRANSIENT,
    QueueProvider,
    SavedFile,
    refuse_container,
    with_logs,
)
from gpuyard.providers.job_folders import LeftFolder, LoggingFolder, WantedFiles
from gpuyard.providers.pool_hands import PoolOwner
from gpuyard.providers.runner_files import read_grace, read_processes
from gpuyard.providers.shared_call import SharedCall
from gpuyard.providers.slurm.beside import (
    RunnerBeside,
    StepCommand,
    start_step,
)
from gpuyard.providers.slurm.client import SlurmClient, SlurmRefusedError
from gpuyard.providers.slurm.commands import CommandClient
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.job_index import JobIndex
from gpuyard.providers.slurm.left_files import SlurmLeftFiles
from gpuyard.providers.slurm.parse_commands import may_pass
from gpuyard.providers.slurm.polling import SlurmPolling
from gpuyard.providers.slurm.pool import SlurmPool
from gpuyard.providers.slurm.rest import RestClient
from gpuyard.providers.slurm.scripts import SlurmScripts, script_of
from gpuyard.providers.slurm.site import LocalSlurmSite, SlurmSite
from gpuyard.providers.slurm.site_over_ssh import SshSlurmSite
from gpuyard.providers.slurm.staging import SlurmStaging
from gpuyard.providers.slurm.submissions import MAX_ARRAY_SIZE, SlurmSubmissions
from gpuyard.providers.slurm.supply import SlurmSupply
from gpuyard.storage.place import open_store

# Seconds between two looks at a log that is followed, and at the state of its job.
_FOLLOW_S = 0.2
_STATUS_S = 5.0
_LOG_PART = 1 << 20
# A job's input and environment are in its order.
_MAX_ORDER = 16 << 20


class SlurmProvider(QueueProvider):
    """Jobs on a Slurm cluster. `config`: see `SlurmSettings`."""

    PROVIDER_NAME: ClassVar[str] = "slurm"
    wants_storage: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = SlurmSettings.read(config)
        # A whole array may be submitted at once. `site` limits the calls to Slurm.
        self.concurrency = max(self.settings.concurrency, MAX_ARRAY_SIZE)
        self.poll_s = self.settings.poll_s
        self.max_pending = self.settings.max_pending
        # slurmrestd can start no step.
        self.runs_commands = self.settings.rest is None
        self.currency = self.settings.currency
        home = Path(self.settings.home)
        self._spool = Path(self.settings.spool or home / "slurm").expanduser()
        self._site = self._make_site()
        blobs = open_store(home, self.settings.storage)
        self._staging = SlurmStaging(self._site, self._spool, self.settings, blobs)
        self._left = SlurmLeftFiles(self._site, home / "slurm-copies")
        self._slurm = self._make_slurm()
        self._supply = SlurmSupply(self._slurm, self.settings)
        self._submitting: dict[str, asyncio.Task[str]] = {}
        self._jobs = JobIndex(self._site, self._spool)
        self._submissions = SlurmSubmissions(
            self._slurm, self._site, self._jobs, self._spool, self.settings.python
        )
        self._scripts = SlurmScripts(
            self._slurm, self._site, self._jobs, home / "slurm-copies"
        )
        self._queue = SharedCall(self._slurm.queue)
        self._polling = SlurmPolling(
            self._slurm, self._site, self._jobs, self._scripts, self._queue
        )

    def _make_slurm(self) -> SlurmClient:
        if self.settings.rest:
            return RestClient(self.settings)
        return CommandClient(self._site, self.settings)

    def _make_site(self) -> SlurmSite:
        config = self.settings
        environment = {**config.environment, "SLURM_TIME_FORMAT": "%s"}
        if config.host is None:
            return LocalSlurmSite(
                environment, config.timeout_s, config.concurrency, self._spool
            )
        return SshSlurmSite(
            config.host,
            config.ssh_options,
            environment,
            config.timeout_s,
            config.concurrency,
            self._spool,
        )

    async def close(self) -> None:
        """Close the connection to the login node, or to slurmrestd."""
        await self._slurm.close()
        await self._site.close()

    # --- submitting ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Write the order, then `sbatch`, unless the attempt was submitted before."""
        submission = self._submitting.get(order.attempt_id)
        if submission is None:
            submission = asyncio.create_task(self._submit(order))
            self._submitting[order.attempt_id] = submission
            submission.add_done_callback(
                lambda _: self._submitting.pop(order.attempt_id, None)
            )
        return await asyncio.shield(submission)

    async def _submit(self, order: AttemptOrder) -> str:
        refuse_container(order, self.PROVIDER_NAME)
        known = await self.find_by_attempt(order.attempt_id)
        if known is not None:
            return known
        try:
            return await self._send(order)
        except SlurmRefusedError as error:
            await self._forget(order.attempt_id)
            raise self._refusal(error, order) from None
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                await self._forget(order.attempt_id)
            raise

    async def _send(self, order: AttemptOrder) -> str:
        folder = self._jobs.folder(order.attempt_id)
        if script := script_of(order):
            return await self._send_script(script, order, folder)
        if not self._supply.is_loaded:
            await self._supply.refresh()
        staged = await self._staging.stage_in(folder, order)
        launcher = self._launcher(folder, order) if order.nodes > 1 else ()
        to_run = runner_order(order, staged, launcher)
        to_run["limit_s"] = self._supply.limit_s(order)
        to_run["watch"] = self._slurm.runner_polls
        await self._site.write(folder.files(to_run, order.stdin))
        request = self._supply.request(order)
        return await self._submissions.submit(request, order.attempt_id)

    async def _send_script(
        self, script: str, order: AttemptOrder, folder: AttemptFolder
    ) -> str:
        if order.stdin is not None:
            fault = (
                f"stdin: sbatch gives {script} no standard input; let the script"
                " read a file"
            )
            raise ProviderError(fault, "slurm", "BAD_SCRIPT")
        if order.secrets:
            fault = f"secrets: sbatch gives {script} none; let the script read them"
            raise ProviderError(fault, "slurm", "BAD_SCRIPT")
        return await self._scripts.submit(script, order, folder)

    def _launcher(self, folder: AttemptFolder, order: AttemptOrder) -> tuple[str, ...]:
        cpus = order.gpu_spec.vcpus
        cpus_option = [f"--cpus-per-task={int(cpus)}"] if cpus else []
        return (
            "srun",
            "--export=ALL",
            "--kill-on-bad-exit=1",
            "--ntasks-per-node=1",
            *cpus_option,
            self.settings.python,
            str(folder.runner),
            str(folder.path),
            "--share",
        )

    def _refusal(self, error: SlurmRefusedError, order: AttemptOrder) -> ProviderError:
        # A script is sent unchanged wherever it goes. If it asks for what there is not,
        # other offers and waiting are of no use to it, and others may go there.
        is_hopeless = script_of(order) is not None and not may_pass(str(error))
        if error.resources and not is_hopeless:
            return InsufficientResourcesError(
                f"Slurm: {error}", self.PROVIDER_NAME, order.gpu_spec
            )
        message = f"Slurm refused the job: {error}"
        return ProviderError(message, self.PROVIDER_NAME, "REFUSED")

    async def start_command(self, job_id: str, request: RunCommand) -> StepCommand:
        """See GpuProviderInterface."""
        folder = await self._job_folder(job_id)
        runner = None
        if not await self._scripts.is_script(job_id):
            runner = RunnerBeside(self.settings.python, folder)
        return await start_step(self._site, job_id, request, runner)

    def exec_by_hand(self, job_id: str) -> str:
        """See GpuProviderInterface."""
        # srun takes no id of an array's job; this asks for the plain one.
        number = f"$(squeue -h -j {job_id} -o %A)" if "_" in job_id else job_id
        host = self.settings.host
        command = f"srun --jobid {number} --overlap --pty COMMAND"
        return f"Type `{command}`{f' on {host}' if host else ''}."

    def forward_by_hand(self, job_id: str, port: int) -> str:
        """See GpuProviderInterface."""
        host = self.settings.host
        jump = f"-J {host} " if host else ""
        return (
            f"`squeue -h -j {job_id} -o %N`{f' on {host}' if host else ''} prints its"
            f" NODE: type `ssh {jump}-N -L {port}:127.0.0.1:{port} NODE`."
        )

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """See GpuProviderInterface."""
        return await self._submissions.find(attempt_id, self._queue)

    # --- polling ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """See GpuProviderInterface."""
        return await self._polling.poll(job_ids)

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        return await with_logs(self, await self._result(job_id))

    async def _result(self, job_id: str) -> JobResult:
        """The state of the job; JobNotFoundError."""
        result = (await self.poll_jobs([job_id])).get(job_id)
        if result is None:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return result

    # --- ending ---

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See GpuProviderInterface."""
        result = await self._result(job_id)
        if not result.status.is_live:
            return False
        reason = Reason.PREEMPTED if checkpoint else Reason.CANCELLED
        folder = self._jobs.job_folder(job_id)
        files = await self._site.read_all([folder.stop, folder.order], _MAX_ORDER)
        earlier_stop = read_json(files.get(folder.stop))
        # A cancellation replaces any other reason.
        is_cancelled = earlier_stop.get("reason") == Reason.CANCELLED
        if not earlier_stop or (reason == Reason.CANCELLED and not is_cancelled):
            stop = {"reason": reason, "checkpoint": checkpoint}
            await self._site.write({folder.stop: json.dumps(stop).encode()})
        self._polling.force_after(job_id, read_grace(files.get(folder.order)))
        is_script = await self._scripts.is_script(job_id)
        signal_only = result.status is JobStatus.RUNNING and not is_script
        problem = await self._slurm.cancel(job_id, signal_only=signal_only)
        if problem and not signal_only:
            raise ProviderError(f"scancel: {problem}", self.PROVIDER_NAME, "TIMEOUT")
        return True

    async def forget_job(self, job_id: str) -> None:
        """Remove its folder."""
        attempt_id = await self._jobs.attempt_of(job_id)
        if attempt_id:
            await self._forget(attempt_id)
            await self._scripts.forget(job_id)
            await self._jobs.forget(job_id)

    async def _forget(self, attempt_id: str) -> None:
        await self._submissions.forget(attempt_id)
        await self._staging.forget(attempt_id)

    # --- output and checkpoints ---

    async def _job_folder(self, job_id: str) -> AttemptFolder:
        """The folder of a job; JobNotFoundError when it is unknown."""
        if job_id not in self._jobs.attempts:
            await self._result(job_id)
        return self._jobs.job_folder(job_id)

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See GpuProviderInterface. The log is one file; only its new part is read."""
        folder = await self._job_folder(job_id)
        log = await self._scripts.log_of(folder)
        offset = 0
        if lines is not None:
            first = max(await self._site.size(log) - _LOG_PART, 0)
            data = await self._site.read(log, first, _LOG_PART) or b""
            tail = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
            offset = first + len(data)
            if tail:
                yield tail
            if not follow:
                return
        parts = self._follow_log if follow else self._log_so_far
        async for part in parts(job_id, folder, offset):
            yield part

    async def _log_so_far(
        self, job_id: str, folder: AttemptFolder, offset: int
    ) -> AsyncIterator[bytes]:
        log = await self._scripts.log_of(folder)
        size = await self._site.size(log)
        while offset < size:
            limit = min(_LOG_PART, size - offset)
            part = await self._site.read(log, offset, limit)
            if not part:
                return
            offset += len(part)
            yield part

    async def _follow_log(
        self, job_id: str, folder: AttemptFolder, offset: int
    ) -> AsyncIterator[bytes]:
        is_over = False
        checked_at = time.monotonic()
        while True:
            log = await self._scripts.log_of(folder)
            part = await self._site.read(log, offset, _LOG_PART)
            if part:
                offset += len(part)
                yield part
                continue
            if is_over:
                return
            await asyncio.sleep(_FOLLOW_S)
            is_over = bool(await self._site.read_all([folder.exit]))
            if not is_over and time.monotonic() - checked_at >= _STATUS_S:
                checked_at = time.monotonic()
                result = await self._result(job_id)
                is_over = not result.status.is_live

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """See GpuProviderInterface."""
        return await self._staging.checkpoints(await self._job_folder(job_id))

    async def left_folder(self, job_id: str, wanted: WantedFiles) -> LeftFolder | None:
        """See GpuProviderInterface."""
        folder = await self._job_folder(job_id)
        if self.settings.copies:
            return await self._left.fetch(folder, wanted)
        if wanted.workdir:
            return LeftFolder(Path(wanted.workdir))
        return LeftFolder(folder.path / "work")

    async def logging_folder(
        self, job_id: str, workdir: str | None
    ) -> LoggingFolder | None:
        """See GpuProviderInterface. Over ssh, this host does not see it."""
        if self.settings.host:
            return None
        folder = await self._job_folder(job_id)
        if self.settings.copies or not workdir:
            return LoggingFolder(folder.path / "work")
        seen = read_processes(await self._site.read(folder.processes))
        return LoggingFolder(Path(workdir), seen.host, seen.pids) if seen else None

    async def bring_back(self, job_id: str) -> None:
        """See GpuProviderInterface."""
        await self._staging.bring_back(await self._job_folder(job_id))

    # --- supply ---

    def pool_hands(self, settings: PoolSettings, owner: PoolOwner) -> SlurmPool | None:
        """See GpuProviderInterface. slurmrestd is asked for no whole nodes."""
        if self.settings.rest:
            return None
        return SlurmPool(
            settings,
            self.settings,
            self._slurm,
            self._site,
            self._supply,
            self._spool,
            owner,
        )

    async def offers(self) -> Sequence[Offer]:
        """One for each partition and kind of node."""
        await self._supply.refresh()
        return self._supply.offers()

    async def price_per_hour(self, job_id: str) -> Decimal:
        """The configured price."""
        return self.settings.price_per_hour

    async def health_check(self) -> dict[str, Any]:
        """Healthy while the controller answers and some node is up."""
        try:
            up = len(await self._slurm.usable_nodes())
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        missing = await self._slurm.missing()
        message = f"{up} nodes can be used"
        return {
            "status": "healthy" if up else "unhealthy",
            "nodes": up,
            "accounting": not missing,
            "message": f"{message}; {missing}" if missing else message,
        }
