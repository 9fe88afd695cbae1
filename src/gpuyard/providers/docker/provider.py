"""The provider `docker`: containers on this host, on the GPUs that the scheduler has
booked for them.

A container's name comes from its attempt's id, so that the daemon refuses a second one.
Its labels have what must outlive the gpuyard server. The daemon keeps the container,
its output and its exit code until `forget_job`.
"""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from docker.errors import APIError
from docker.models.containers import Container

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.domain.reasons import Reason
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.domain.validation import parse_model
from gpuyard.providers.base import (
    GpuProviderInterface,
    QueueProvider,
    SavedFile,
    with_logs,
)
from gpuyard.providers.checkpoint_files import CheckpointFinder, ended_by_itself
from gpuyard.providers.docker.command import ContainerCommand, start_in_container
from gpuyard.providers.docker.config import DockerConfig
from gpuyard.providers.docker.container import (
    ATTEMPT,
    ContainerArguments,
    forward_by_hand,
    instant,
    is_live,
    limits_of,
    logging_folder,
    runs_again,
    started_at,
    state_of,
    work_folder,
)
from gpuyard.providers.docker.daemon import DockerDaemon, ImagePulls
from gpuyard.providers.docker.datasets import ContainerDatasets
from gpuyard.providers.docker.stream import in_thread
from gpuyard.providers.job_folders import LeftFolder, LoggingFolder, WantedFiles
from gpuyard.providers.program_use import ProgramUse
from gpuyard.providers.runner_files import BrokenFileError
from gpuyard.providers.running_times import RunningTimes
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.place import in_background, open_store
from gpuyard.storage.untrusted import remove_tree

_TERM_GRACE_S = 10.0
_PREFIX = "gpuyard-"
_SHELL_SAYS = {126: Reason.NOT_EXECUTABLE, 127: Reason.COMMAND_NOT_FOUND}
"""Exit codes of a shell that could not start the program and printed why."""
_DAEMON_STOPPED = frozenset({137, 143, 255})
"""Exit codes of containers that end because the daemon stops."""


@dataclass(slots=True)
class _Stop:
    """Why a container is being stopped, and when it gets TERM and KILL.

    Times are monotonic seconds.
    """

    reason: str
    term_at: float
    kill_at: float


class DockerProvider(QueueProvider):
    """Containers of this host's Docker. `config`: see `DockerConfig`."""

    PROVIDER_NAME: ClassVar[str] = "docker"
    containers: ClassVar[bool] = True
    containers_on: ClassVar[str] = OWN_NODES
    wants_storage: ClassVar[bool] = True
    max_pending: int = 0  # it has no queue of its own
    answer_age_s = 0.0
    runs_commands: bool = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = parse_model(DockerConfig, dict(config))
        self.concurrency = self.settings.concurrency
        self.poll_s = self.settings.poll_s
        self.currency = self.settings.currency
        self._folder = Path(self.settings.home) / "docker"
        blobs = open_store(Path(self.settings.home), self.settings.storage)
        self._arguments = ContainerArguments(self.settings, self._folder, blobs)
        self._daemon = DockerDaemon(self.settings.host)
        self._datasets = ContainerDatasets(self.settings, self._daemon)
        self._images = ImagePulls(self._daemon)
        self.doing: Mapping[str, str] = self._images.progress
        self._checkpoints = CheckpointFinder()
        self._stops: dict[str, _Stop] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._signalled_at: dict[str, float] = {}
        self._running_times = RunningTimes()
        self._locks: dict[str, asyncio.Lock] = {}
        self._polled_at = time.time()

    async def close(self) -> None:
        """See GpuProviderInterface."""
        self._daemon.close()

    # --- beside a job ---

    async def start_command(self, job_id: str, request: RunCommand) -> ContainerCommand:
        """See GpuProviderInterface."""
        return await start_in_container(self._daemon, job_id, request)

    def forward_by_hand(self, job_id: str, port: int) -> str:
        """See GpuProviderInterface."""
        return forward_by_hand(self.settings.host, job_id, port)

    # --- submitting ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Pull the image, create and start the container, unless it exists."""
        name = f"{_PREFIX}{order.attempt_id}"
        async with self._locks.setdefault(order.attempt_id, asyncio.Lock()):
            try:
                with suppress(JobNotFoundError):
                    return await self._started(await self._daemon.find(name))
                self._running_times.note_waiting(name)
                self._refuse_too_much(order)
                if not order.image:
                    message = "The job names no image."
                    raise ProviderError(message, self.PROVIDER_NAME, "NO_IMAGE")
                await self._images.ensure(order.image, order.attempt_id)
                return await self._started(await self._create(name, order))
            finally:
                self._images.progress.pop(order.attempt_id, None)
                self._locks.pop(order.attempt_id, None)

    def _refuse_too_much(self, order: AttemptOrder) -> None:
        """A job may only use GPUs that the scheduler has booked for it."""
        asked = order.gpu_spec.gpu_count
        booked = len(order.gpu_uuids)
        if booked < asked:
            message = (
                f"{asked} GPUs are asked for, and {booked} were booked for it. Without"
                " a gpuyard server, name their UUIDs in provider_options.gpu_uuids."
            )
            raise InsufficientResourcesError(
                message, self.PROVIDER_NAME, order.gpu_spec
            )

    async def _create(self, name: str, order: AttemptOrder) -> Container:
        client = await self._daemon.client()
        try:
            async with self._datasets.mounted(order) as datasets:
                arguments = await in_background(self._arguments.of, order)
                arguments["mounts"] += datasets
                return await self._daemon.call(
                    client.containers.create, order.image, name=name, **arguments
                )
        except APIError as error:
            if error.status_code == 409:
                # Another server, which was taken for dead, has just created it.
                return await self._daemon.find(name)
            message = f"Docker refused the container: {error.explanation or error}"
            raise ProviderError(message, self.PROVIDER_NAME, "REFUSED") from None
        except BucketError:
            raise
        except OSError as error:
            message = f"Its files cannot be laid out: {error}"
            raise ProviderError(message, self.PROVIDER_NAME, "REFUSED") from None

    async def _started(self, container: Container) -> str:
        """Start a container unless it was started; returns its name.

        If it cannot be started, the container keeps the error. ProviderError when it is
        not ours.
        """
        if f"{_PREFIX}{container.labels.get(ATTEMPT)}" != container.name:
            message = f"There is a container {container.name} that is not gpuyard's."
            raise ProviderError(message, self.PROVIDER_NAME, "REFUSED")
        if container.status == "created" and not state_of(container)["Error"]:
            with suppress(APIError):
                await self._daemon.call(container.start)
        return str(container.name)

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Find the container by its name, and start it if it was only created."""
        try:
            container = await self._daemon.find(f"{_PREFIX}{attempt_id}")
        except JobNotFoundError:
            return None
        return await self._started(container)

    # --- polling ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """One request for each job: the daemon's list does not say how jobs ended."""
        found: dict[str, JobResult] = {}
        for job_id in job_ids:
            try:
                found[job_id] = await self._result_of(job_id)
            except JobNotFoundError:
                continue
            except BrokenFileError as error:
                found[job_id] = error.result(job_id)
        self._polled_at = time.time()
        self._daemon.was_away = False
        return found

    def has_run(self, job_id: str, ran_s: float) -> None:
        """See GpuProviderInterface."""
        self._running_times.note_running(job_id, ran_s)

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface; BrokenFileError for a container of others."""
        return await with_logs(self, await self._result_of(job_id))

    async def _result_of(self, job_id: str) -> JobResult:
        """The state of the job, after the signals that are due; JobNotFoundError."""
        container = await self._daemon.find(job_id)
        limits_of(container)
        await self._enforce_limits(container)
        result = self._result(container)
        reason = _SHELL_SAYS.get(result.exit_code or 0)
        if reason is None or result.reason:
            return result
        shell_error = await self._shell_error(container)
        if not shell_error:
            return result
        return replace(result, reason=reason, error_message=shell_error)

    async def _shell_error(self, container: Container) -> str:
        """What the shell printed last if it was an error of its own; else empty."""
        data = b""
        with suppress(APIError):
            data = await self._daemon.call(lambda: bytes(container.logs(tail=1)))
        last_line = data.decode(errors="replace").strip()
        if not last_line.startswith("sh: "):
            return ""
        return last_line.removeprefix("sh: ").partition(": ")[2]

    def _result(self, container: Container) -> JobResult:
        state = state_of(container)
        began_at = started_at(container)
        result = JobResult(
            str(container.name),
            JobStatus.RUNNING,
            instant(container.attrs["Created"]),
            began_at,
        )
        if is_live(container):
            return result
        if container.status == "created" and not state["Error"]:
            return replace(result, status=JobStatus.PENDING, started_at=None)
        ended_at = instant(state["FinishedAt"]) or time.time()
        if began_at:
            # The host's clock may have been put back meanwhile.
            ended_at = max(ended_at, began_at)
        exit_code = int(state["ExitCode"])
        return self._ended(
            replace(result, exit_code=exit_code, completed_at=ended_at), state
        )

    def _ended(self, result: JobResult, state: Mapping[str, Any]) -> JobResult:
        """Why it ended; `result` has its times and exit code."""
        failed = replace(result, status=JobStatus.FAILED)
        if state["Error"] or not result.started_at:
            message = str(state["Error"])
            reason = Reason.NOT_STARTED
            if "not found" in message:
                reason = Reason.COMMAND_NOT_FOUND
            return replace(
                failed, reason=reason, error_message=message, started_at=None
            )
        if state["OOMKilled"]:
            message = "the kernel killed it: it used more memory than it asked for"
            return replace(failed, reason=Reason.OUT_OF_MEMORY, error_message=message)
        stop = self._stops.get(result.job_id)
        if stop is not None:
            return _stopped(result, stop.reason)
        if self._ended_with_daemon(result.exit_code, state):
            message = "Docker was restarted"
            return replace(failed, reason=Reason.PREEMPTED, error_message=message)
        if result.exit_code:
            return replace(failed, error_message=f"exit code {result.exit_code}")
        return replace(result, status=JobStatus.COMPLETED, error_message=None)

    def _ended_with_daemon(self, code: int | None, state: Mapping[str, Any]) -> bool:
        """Whether a container ended because the daemon stopped.

        It ended after the last poll, the daemon was away since, and its exit code is
        one of a killed program.
        """
        finished_at = instant(state["FinishedAt"])
        if finished_at is None or finished_at < self._polled_at:
            return False
        return self._daemon.was_away and code in _DAEMON_STOPPED

    # --- ending ---

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See GpuProviderInterface."""
        container = await self._daemon.find(job_id)
        if not self._result(container).status.is_live:
            return False
        reason = Reason.PREEMPTED if checkpoint else Reason.CANCELLED
        await self._begin_stop(container, reason, checkpoint=checkpoint)
        return True

    async def _begin_stop(
        self, container: Container, reason: str, *, checkpoint: bool
    ) -> None:
        """Send TERM, or with `checkpoint` first the checkpoint signal if it has one."""
        name = str(container.name)
        limits = limits_of(container)
        earlier_stop = self._stops.get(name)
        if earlier_stop is not None:
            if reason == Reason.CANCELLED:
                earlier_stop.reason = reason
            return
        grace_s = limits.grace_s or 0.0
        signal = limits.signal if checkpoint else None
        term_at = time.monotonic() + (grace_s if signal else 0.0)
        kill_at = term_at + min(grace_s, _TERM_GRACE_S)
        self._stops[name] = _Stop(reason, term_at, kill_at)
        if runs_again(container):
            await self._daemon.call(container.update, restart_policy={"Name": "no"})
        if signal:
            await self._signal(container, signal)
        await self._enforce_limits(container)
        task = asyncio.create_task(self._wait_until_ended(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _wait_until_ended(self, name: str) -> None:
        """Send a container that is being stopped its signals until it has ended."""
        with suppress(ProviderError):
            while is_live(container := await self._daemon.find(name)):
                await self._enforce_limits(container)
                await asyncio.sleep(0.1)

    async def _enforce_limits(self, container: Container) -> None:
        """Send the signal that is due: at the timeout, for a checkpoint, TERM, KILL."""
        if not is_live(container):
            return
        name = str(container.name)
        limits = limits_of(container)
        now = time.monotonic()
        stop = self._stops.get(name)
        if stop is not None:
            if now >= stop.kill_at:
                await self._signal(container, "KILL")
            elif now >= stop.term_at:
                stop.term_at = stop.kill_at
                await self._signal(container, "TERM")
            return
        wall_clock = time.time()
        began_at = started_at(container) or wall_clock
        ran_s = self._running_times.ran_s(name, wall_clock - began_at)
        if limits.timeout_s and ran_s >= limits.timeout_s:
            await self._begin_stop(container, Reason.TIMED_OUT, checkpoint=True)
        elif limits.signal and limits.every_s:
            last = self._signalled_at.setdefault(name, now)
            if now - last >= limits.every_s:
                self._signalled_at[name] = now
                await self._signal(container, limits.signal)

    async def _signal(self, container: Container, name: str) -> None:
        with suppress(APIError):  # it has just ended by itself
            await self._daemon.call(container.kill, f"SIG{name.removeprefix('SIG')}")

    async def forget_job(self, job_id: str) -> None:
        """Remove the container, unless it only has the name of one of ours, and its
        folder.
        """
        container = await self._daemon.find(job_id)
        attempt_id = job_id.removeprefix(_PREFIX)
        if container.labels.get(ATTEMPT) == attempt_id:
            await self._daemon.call(container.remove, force=True)
        await asyncio.to_thread(remove_tree, self._folder / attempt_id)
        self._checkpoints.forget(job_id)
        self._stops.pop(job_id, None)
        self._signalled_at.pop(job_id, None)
        self._running_times.forget(job_id)

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """The checkpoints in its folder, which is on this host."""
        container = await self._daemon.find(job_id)
        pattern = limits_of(container).path
        began_at = started_at(container)
        folder = work_folder(container)
        if not pattern or began_at is None or folder is None:
            return []
        result = self._result(container)
        # A program that had to leave, and exited with 0, has saved its work.
        has_saved = ended_by_itself(result.exit_code, result.reason)
        has_saved = has_saved or result.exit_code == 0
        over = not is_live(container) and has_saved
        return await asyncio.to_thread(
            self._checkpoints.find, job_id, folder, pattern, began_at, over=over
        )

    async def left_folder(self, job_id: str, wanted: WantedFiles) -> LeftFolder | None:
        """See GpuProviderInterface."""
        folder = work_folder(await self._daemon.find(job_id))
        return LeftFolder(folder) if folder else None

    async def logging_folder(
        self, job_id: str, workdir: str | None
    ) -> LoggingFolder | None:
        """See GpuProviderInterface."""
        return logging_folder(await self._daemon.find(job_id), self._folder)

    async def use_of(self, job_id: str) -> ProgramUse | None:
        """See GpuProviderInterface."""
        return await self._daemon.use_of(job_id)

    # --- output ---

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface."""
        container = await self._daemon.find(job_id)
        if lines == 0:
            return ""
        # Without `until` the log of a job that never stops writing would not end.
        until = time.time() if lines is None and is_live(container) else None
        tail: Any = "all" if lines is None else lines
        data: bytes = await self._daemon.call(container.logs, tail=tail, until=until)
        return data.decode(errors="replace")

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See GpuProviderInterface."""
        container = await self._daemon.find(job_id)
        if not follow:
            yield (await self.get_job_logs(job_id, lines)).encode()
            return
        if runs_again(container):
            # A stream of the daemon ends with each run of the program.
            looks = GpuProviderInterface.stream_logs(
                self, job_id, lines=lines, follow=True
            )
            async for part in looks:
                yield part
            return
        tail = "all" if lines is None else lines
        source = await self._daemon.call(
            container.logs, stream=True, follow=True, tail=tail
        )
        async for part in in_thread(source):
            yield part

    # --- supply ---

    async def offers(self) -> Sequence[Offer]:
        """None of its own: its containers run on nodes whose agents offer them."""
        client = await self._daemon.client()
        await self._daemon.call(client.ping)
        return []

    async def price_per_hour(self, job_id: str) -> Decimal:
        """The configured price."""
        return self.settings.price_per_hour

    async def health_check(self) -> dict[str, Any]:
        """Healthy while the daemon answers."""
        try:
            client = await self._daemon.client()
            version = (await self._daemon.call(client.version))["Version"]
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        return {"status": "healthy", "version": version}


def _stopped(result: JobResult, reason: str) -> JobResult:
    """The end of a container that was stopped for this reason."""
    is_cancelled = reason == Reason.CANCELLED
    return replace(
        result,
        status=JobStatus.CANCELLED if is_cancelled else JobStatus.FAILED,
        reason=reason,
        error_message="timed out" if reason == Reason.TIMED_OUT else reason,
    )
