"""The provider `docker`: containers on this host, on the GPUs that the scheduler has booked for them.

A container has a name made of its attempt's id, so the daemon itself refuses a second one, and everything else that
has to outlive gpuyard is in its labels. The daemon keeps it, its output and its exit code until `forget_job`.
"""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from gpuyard.domain.errors import InsufficientResourcesError, JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.domain.validation import parse_model
from gpuyard.providers.base import GpuProviderInterface, SavedFile
from gpuyard.providers.docker.config import DockerConfig
from gpuyard.providers.docker.container import (
    ATTEMPT,
    Blueprint,
    instant,
    is_live,
    limits_of,
    reference_of,
    state_of,
)
from gpuyard.providers.docker.stream import in_thread
from gpuyard.providers.saving import Saving, by_itself
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.place import in_background, open_store

_TERM_GRACE_S = 10.0
_SHELL_SAYS = {126: "not_executable", 127: "command_not_found"}
"""Exit codes of a shell that could not start the program, and said why."""
_GONE = frozenset({137, 143, 255})
"""Exit codes of what a daemon that stops takes with it."""
Result = TypeVar("Result")


@dataclass(slots=True)
class _Stop:
    """A container on its way out: why, and when it gets TERM and KILL (monotonic seconds)."""

    reason: str
    term_at: float
    kill_at: float


class DockerProvider(GpuProviderInterface):
    """Containers of this host's Docker. `config`: see `DockerConfig`."""

    PROVIDER_NAME: ClassVar[str] = "docker"
    containers: ClassVar[bool] = True
    wants_storage: ClassVar[bool] = True
    max_pending: int = 0  # it has no line of its own

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = parse_model(DockerConfig, dict(config))
        self.concurrency, self.poll_s = self.settings.concurrency, self.settings.poll_s
        self._folder = Path(self.settings.home) / "docker"
        blobs = open_store(Path(self.settings.home), self.settings.storage)
        self._blueprint = Blueprint(self.settings, self._folder, blobs)
        self._client: docker.DockerClient | None = None
        self._saving = Saving()
        self._stops: dict[str, _Stop] = {}
        self._seeing_out: set[asyncio.Task[None]] = set()
        self._saved_at: dict[str, float] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._seen_at, self._was_away = time.time(), False
        self._pulled: dict[str, str] = {}
        self.doing: Mapping[str, str] = self._pulled

    # --- the daemon ---

    async def _call(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """A call to the daemon, in a thread; ProviderError when it does not answer."""
        try:
            return await asyncio.to_thread(work, *arguments, **named)
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            self._client, self._was_away = None, True
            message = f"Docker's daemon does not answer: {error}"
            raise ProviderError(message, self.PROVIDER_NAME, "NOT_CONNECTED") from None
        except (APIError, ImageNotFound):
            raise
        except DockerException as error:
            self._client, self._was_away = None, True
            message = f"Docker cannot be used: {error}. Is the daemon running, and may you use it?"
            raise ProviderError(message, self.PROVIDER_NAME, "NOT_CONNECTED") from None

    async def _daemon(self) -> docker.DockerClient:
        if self._client is None:
            host = self.settings.host
            self._client = await self._call(
                lambda: docker.DockerClient(base_url=host, timeout=60) if host else docker.from_env(timeout=60)
            )
        return self._client

    async def _find(self, job_id: str) -> Container:
        daemon = await self._daemon()
        try:
            return await self._call(daemon.containers.get, job_id)
        except NotFound:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME) from None
        except APIError as error:
            raise _trouble(error) from None

    # --- submitting ---

    async def submit_job(self, job_config: JobConfig) -> str:
        """Pull what is missing, create, start; an attempt that is there already is not started again."""
        attempt_id = job_config.attempt_id or new_id("attempt")
        name = f"gpuyard-{attempt_id}"
        async with self._turns.setdefault(attempt_id, asyncio.Lock()):
            try:
                with suppress(JobNotFoundError):
                    return await self._started(await self._find(name))
                self._refuse_too_much(job_config)
                await self._have_image(job_config, attempt_id)
                return await self._started(await self._create(name, attempt_id, job_config))
            finally:
                self._pulled.pop(attempt_id, None)
                self._turns.pop(attempt_id, None)

    def _refuse_too_much(self, config: JobConfig) -> None:
        """Devices are given by the scheduler: nobody may take any for himself."""
        given = config.provider_options.get("gpu_uuids") or ()
        if len(given) < config.gpu_spec.gpu_count:
            message = f"{config.gpu_spec.gpu_count} GPUs are asked for, and {len(given)} were booked for it."
            raise InsufficientResourcesError(message, self.PROVIDER_NAME, config.gpu_spec)

    async def _have_image(self, config: JobConfig, attempt_id: str) -> None:
        image, daemon = _image(config), await self._daemon()
        try:
            await self._call(daemon.images.get, image)
        except ImageNotFound:
            pull = self._pulls.get(image)
            if pull is None:
                pull = self._pulls[image] = asyncio.create_task(self._pull(image, attempt_id))
                pull.add_done_callback(lambda _: self._pulls.pop(image, None))
            await asyncio.shield(pull)
        except APIError as error:
            raise ProviderError(
                f"The image {image}: {error.explanation or error}", self.PROVIDER_NAME, "NO_IMAGE"
            ) from None

    async def _pull(self, image: str, attempt_id: str) -> None:
        daemon = await self._daemon()
        self._pulled[attempt_id] = f"the image {image} is being pulled"

        def pull() -> None:
            sizes: dict[str, tuple[int, int]] = {}
            for line in daemon.api.pull(*reference_of(image), stream=True, decode=True):
                if "error" in line:
                    raise APIError(line["error"])
                detail = line.get("progressDetail") or {}
                if detail.get("total"):
                    sizes[line["id"]] = (detail["current"], detail["total"])
                    done, total = (sum(part) for part in zip(*sizes.values(), strict=True))
                    self._pulled[attempt_id] = f"the image {image} is being pulled: {100 * done // total} %"

        try:
            await self._call(pull)
        except APIError as error:
            message = f"The image {image} cannot be pulled: {error.explanation or error}"
            raise ProviderError(message, self.PROVIDER_NAME, "NO_IMAGE") from None

    async def _create(self, name: str, attempt_id: str, config: JobConfig) -> Container:
        daemon = await self._daemon()
        try:
            values = await in_background(self._blueprint.values, attempt_id, config)
            return await self._call(daemon.containers.create, _image(config), name=name, **values)
        except APIError as error:
            if error.status_code == 409:  # somebody was quicker: a server that was thought dead
                return await self._find(name)
            message = f"Docker refused the container: {error.explanation or error}"
            raise ProviderError(message, self.PROVIDER_NAME, "REFUSED") from None
        except BucketError:
            raise
        except OSError as error:
            raise ProviderError(f"Its files cannot be laid out: {error}", self.PROVIDER_NAME, "REFUSED") from None

    async def _started(self, container: Container) -> str:
        """Start it unless it has been; why it cannot be stays with the container."""
        if container.status == "created" and not state_of(container)["Error"]:
            with suppress(APIError):
                await self._call(container.start)
        return str(container.name)

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Its name tells; one that was created and not started is started by the next submission."""
        try:
            container = await self._find(f"gpuyard-{attempt_id}")
        except JobNotFoundError:
            return None
        return await self._started(container)

    # --- asking ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """One after another: the daemon is on this host, and its list does not say how a container ended."""
        found: dict[str, JobResult] = {}
        for job_id in job_ids:
            with suppress(JobNotFoundError):
                found[job_id] = await self.get_job_status(job_id)
        self._seen_at, self._was_away = time.time(), False
        return found

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        return await self._look(await self._find(job_id))

    async def _look(self, container: Container) -> JobResult:
        await self._tend(container)
        result = self._result(container)
        if result.exit_code in _SHELL_SAYS and not result.reason:
            said = ""
            with suppress(APIError):
                said = (await self._call(lambda: bytes(container.logs(tail=1)))).decode(errors="replace").strip()
            if said.startswith("sh: "):
                reason = _SHELL_SAYS[result.exit_code]
                return replace(result, reason=reason, error_message=said.removeprefix("sh: ").partition(": ")[2])
        return result

    def _result(self, container: Container) -> JobResult:
        state, name = state_of(container), str(container.name)
        began, done = instant(state["StartedAt"]), instant(state["FinishedAt"])
        result = JobResult(name, JobStatus.RUNNING, instant(container.attrs["Created"]), began)
        if container.status in ("running", "paused", "restarting"):
            return result
        if container.status == "created" and not state["Error"]:
            return replace(result, status=JobStatus.PENDING, started_at=None)
        code = int(state["ExitCode"])
        result = replace(result, exit_code=code, completed_at=done or began or time.time())
        stop = self._stops.get(name)
        if state["Error"] or not began:
            message = str(state["Error"])
            reason = "command_not_found" if "not found" in message else "not_started"
            return replace(result, status=JobStatus.FAILED, reason=reason, error_message=message, started_at=None)
        if state["OOMKilled"]:
            message = "the kernel killed it: it used more memory than it asked for"
            return replace(result, status=JobStatus.FAILED, reason="out_of_memory", error_message=message)
        if stop is not None:
            status = JobStatus.CANCELLED if stop.reason == "cancelled" else JobStatus.FAILED
            said = "timed out" if stop.reason == "timed_out" else stop.reason
            return replace(result, status=status, reason=stop.reason, error_message=said)
        # It ended while nobody could ask: with the daemon, whose end takes its containers along.
        if code in _GONE and self._was_away and done is not None and done >= self._seen_at:
            return replace(result, status=JobStatus.FAILED, reason="preempted", error_message="Docker was restarted")
        return replace(result, status=JobStatus.FAILED if code else JobStatus.COMPLETED,
                       error_message=f"exit code {code}" if code else None)  # fmt: skip

    # --- ending ---

    async def cancel_job(self, job_id: str) -> bool:
        """TERM, its grace, KILL."""
        return await self._stop(job_id, "cancelled", kindly=False)

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See Queues."""
        return await self._stop(job_id, "preempted" if checkpoint else "cancelled", kindly=checkpoint)

    async def _stop(self, job_id: str, reason: str, *, kindly: bool) -> bool:
        container = await self._find(job_id)
        if self._result(container).status not in (JobStatus.PENDING, JobStatus.RUNNING):
            return False
        await self._begin_stop(container, reason, kindly=kindly)
        return True

    async def _begin_stop(self, container: Container, reason: str, *, kindly: bool) -> None:
        name, limits = str(container.name), limits_of(container)
        known = self._stops.get(name)
        if known is not None:
            known.reason = reason if reason == "cancelled" else known.reason
            return
        now, grace_s = time.monotonic(), float(limits["grace_s"])
        asked = kindly and limits["signal"]
        term_at = now + (grace_s if asked else 0.0)
        self._stops[name] = _Stop(reason, term_at, term_at + min(grace_s, _TERM_GRACE_S))
        if asked:
            await self._signal(container, limits["signal"])
        await self._tend(container)
        task = asyncio.create_task(self._see_out(name))
        self._seeing_out.add(task)
        task.add_done_callback(self._seeing_out.discard)

    async def _see_out(self, name: str) -> None:
        """Whoever is on its way out is not left alone until it is gone."""
        with suppress(ProviderError):
            while is_live(container := await self._find(name)):
                await self._tend(container)
                await asyncio.sleep(0.1)

    async def _tend(self, container: Container) -> None:
        """What the time calls for: its timeout, a checkpoint, TERM, KILL."""
        if not is_live(container):
            return
        name, limits, now = str(container.name), limits_of(container), time.monotonic()
        stop = self._stops.get(name)
        if stop is not None:
            if now >= stop.kill_at:
                await self._signal(container, "KILL")
            elif now >= stop.term_at:
                stop.term_at = stop.kill_at
                await self._signal(container, "TERM")
            return
        began = instant(state_of(container)["StartedAt"]) or time.time()
        if limits["timeout_s"] and time.time() - began >= limits["timeout_s"]:
            await self._begin_stop(container, "timed_out", kindly=True)
        elif limits["signal"] and limits["every_s"]:
            last = self._saved_at.setdefault(name, now)
            if now - last >= limits["every_s"]:
                self._saved_at[name] = now
                await self._signal(container, limits["signal"])

    async def _signal(self, container: Container, name: str) -> None:
        with suppress(APIError):  # it has just ended by itself
            await self._call(container.kill, f"SIG{name.removeprefix('SIG')}")

    async def forget_job(self, job_id: str) -> None:
        """Remove the container and its folder."""
        container = await self._find(job_id)
        attempt_id = container.labels[ATTEMPT]
        await self._call(container.remove, force=True)
        await asyncio.to_thread(shutil.rmtree, self._folder / attempt_id, ignore_errors=True)
        self._saving.forget(job_id)
        self._stops.pop(job_id, None)
        self._saved_at.pop(job_id, None)

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """See SavesCheckpoints: what it wrote in its folder, which is on this host."""
        container = await self._find(job_id)
        pattern, began = limits_of(container).get("path"), instant(state_of(container)["StartedAt"])
        if not pattern or began is None:
            return []
        inside = container.attrs["Config"]["WorkingDir"]
        mounts = container.attrs["Mounts"]
        folder = next((Path(mount["Source"]) for mount in mounts if mount["Destination"] == inside), None)
        if folder is None:
            return []
        result = self._result(container)
        over = not is_live(container) and by_itself(result.exit_code, result.reason)
        return await asyncio.to_thread(self._saving.look, job_id, folder, pattern, began, over=over)

    # --- output ---

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface."""
        container = await self._find(job_id)
        if lines == 0:
            return ""
        # Of one that never stops writing, all there is now is everything until now.
        until = time.time() if lines is None and is_live(container) else None
        tail: Any = "all" if lines is None else lines
        data: bytes = await self._call(container.logs, tail=tail, until=until)
        return data.decode(errors="replace")

    async def stream_logs(self, job_id: str, *, lines: int | None, follow: bool) -> AsyncIterator[bytes]:
        """See StreamsLogs."""
        container = await self._find(job_id)
        if not follow:
            yield (await self.get_job_logs(job_id, lines)).encode()
            return
        tail = "all" if lines is None else lines
        source = await self._call(container.logs, stream=True, follow=True, tail=tail)
        async for part in in_thread(source):
            yield part

    # --- supply ---

    async def offers(self) -> Sequence[Offer]:
        """None of its own: its containers run on nodes that have an agent, which offer themselves."""
        daemon = await self._daemon()
        await self._call(daemon.ping)
        return []

    async def list_available_gpus(self) -> list[GpuSpec]:
        """The devices are the node's; see `local`."""
        return []

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """Seconds at the configured price."""
        result = await self.get_job_status(job_id)
        seconds = (result.completed_at or time.time()) - result.started_at if result.started_at else 0.0
        total = self.settings.price_per_hour * Decimal(str(max(seconds, 0.0))) / 3600
        return CostInfo(job_id, total, self.settings.currency, {"compute": total})

    async def health_check(self) -> dict[str, Any]:
        """Healthy while the daemon answers."""
        try:
            daemon = await self._daemon()
            version = (await self._call(daemon.version))["Version"]
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        return {"status": "healthy", "version": version}

    async def close(self) -> None:
        """See GpuProviderInterface."""
        if self._client is not None:
            self._client.close()


def _trouble(error: APIError) -> ProviderError:
    """The daemon answers, and cannot do it now."""
    return ProviderError(f"Docker: {error.explanation or error}", "docker", "TIMEOUT")


def _image(config: JobConfig) -> str:
    if not config.image:
        raise ProviderError("The job names no image.", "docker", "NO_IMAGE")
    return config.image
