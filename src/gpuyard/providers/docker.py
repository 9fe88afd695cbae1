"""The provider `docker`: containers on this host, on the GPUs that the scheduler has booked for them.

A container has a name made of its attempt's id, so the daemon itself refuses a second one, and everything else that
has to outlive gpuyard is in its labels. The daemon keeps it, its output and its exit code until `forget_job`.
"""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.errors import InsufficientResourcesError, JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.domain.validation import parse_model
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.together import Together
from gpuyard.storage.blobs import BlobStore

_ATTEMPT, _HOME, _LIMITS = "gpuyard.attempt", "gpuyard.home", "gpuyard.limits"
_TERM_GRACE_S = 10.0
# One output, in order, whatever the program writes where; and its standard input from a file.
_SHELL = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
_SHELL_STDIN = ("/bin/sh", "-c", 'exec "$@" 2>&1 </gpuyard/stdin', "sh")
_SHELL_SAYS = {126: "not_executable", 127: "command_not_found"}
"""Exit codes of a shell that could not start the program, and said why."""
_GONE = frozenset({137, 143, 255})
"""Exit codes of what a daemon that stops takes with it."""
Result = TypeVar("Result")


class DockerConfig(BaseModel):
    """What `[providers.docker]` may say. `host`: the daemon's address, by default as the `docker` command finds it.

    `workspace` is a folder of this host that each container sees as `/workspace`. `writable_root` lets jobs change the
    image's files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: str
    enabled: bool = True
    host: str | None = None
    workspace: str | None = None
    writable_root: bool = False
    network: str = "bridge"
    max_processes: int = Field(default=8192, ge=1)
    price_per_hour: Decimal = Field(default=Decimal(0), ge=0)
    currency: str = "USD"
    max_pending: int = Field(default=8, ge=1)
    concurrency: int = Field(default=8, ge=1)
    poll_s: float = Field(default=1.0, gt=0)


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

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = parse_model(DockerConfig, dict(config))
        self.concurrency, self.poll_s = self.settings.concurrency, self.settings.poll_s
        self.max_pending = self.settings.max_pending
        self._folder = Path(self.settings.home) / "docker"
        self._blobs = BlobStore(Path(self.settings.home) / "blobs")
        self._client: docker.DockerClient | None = None
        self._stops: dict[str, _Stop] = {}
        self._saved_at: dict[str, float] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._seen_at, self._was_away = time.time(), False
        self._pulled: dict[str, str] = {}
        self._listed = Together(self._list)
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

    async def _list(self) -> list[Any]:
        daemon = await self._daemon()
        wanted = {"label": f"{_HOME}={self.settings.home}"}
        try:
            return list(await self._call(daemon.api.containers, all=True, filters=wanted))
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
            for line in daemon.api.pull(*_reference(image), stream=True, decode=True):
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
            values = await asyncio.to_thread(self._values, attempt_id, config)
            return await self._call(daemon.containers.create, _image(config), name=name, **values)
        except APIError as error:
            if error.status_code == 409:  # somebody was quicker: a server that was thought dead
                return await self._find(name)
            message = f"Docker refused the container: {error.explanation or error}"
            raise ProviderError(message, self.PROVIDER_NAME, "REFUSED") from None
        except OSError as error:
            raise ProviderError(f"Its files cannot be laid out: {error}", self.PROVIDER_NAME, "REFUSED") from None

    def _values(self, attempt_id: str, config: JobConfig) -> dict[str, Any]:
        """What the daemon is told, in the terms of docker-py."""
        need, options = config.gpu_spec, config.provider_options
        uuids: list[str] = list(options.get("gpu_uuids") or ()) if need.gpu_count else []
        private = self._folder / attempt_id
        private.mkdir(parents=True, exist_ok=True, mode=0o700)
        workdir = options.get("workdir") or "/gpuyard/work"
        mounts, resume_from = self._mounts(private, config)
        extra = [word.replace("{path}", resume_from) for word in config.checkpoint.resume_args] if resume_from else []
        limits = {"timeout_s": config.timeout_minutes * 60 if config.timeout_minutes else None,
                  "grace_s": config.grace_s, "signal": config.checkpoint.signal,
                  "every_s": config.checkpoint.every_s}  # fmt: skip
        return {
            "entrypoint": list(_SHELL if config.args_via_stdin is None else _SHELL_STDIN),
            "command": [*config.command, *extra],
            "environment": self._environment(config, uuids, resume_from),
            "working_dir": workdir,
            "mounts": mounts,
            "labels": {_ATTEMPT: attempt_id, _HOME: self.settings.home, _LIMITS: json.dumps(limits)},
            "device_requests": [DeviceRequest(device_ids=uuids, capabilities=[["gpu"]])] if uuids else None,
            "mem_limit": int(need.ram_gb * (1 << 30)) if need.ram_gb else None,
            "nano_cpus": int(need.vcpus * 1e9) if need.vcpus else None,
            "pids_limit": self.settings.max_processes,
            "read_only": not self.settings.writable_root,
            "tmpfs": {"/tmp": ""},
            "security_opt": ["no-new-privileges"],
            "user": f"{os.getuid()}:{os.getgid()}",
            "network_mode": self.settings.network,
            "log_config": LogConfig(type="json-file", config={"max-size": "1000g"}),
            "init": True,  # whoever is process 1 himself ignores TERM, and cannot even be killed by his own hand
        }

    def _mounts(self, private: Path, config: JobConfig) -> tuple[list[Mount], str]:
        """The folders it sees, and where its checkpoint to resume from lies."""
        options = config.provider_options
        mounts = [Mount(inside, outside, type="bind") for inside, outside in config.volumes.items()]
        if options.get("workdir"):
            mounts.append(Mount(options["workdir"], options["workdir"], type="bind"))
        else:
            (private / "work").mkdir(exist_ok=True)
            mounts.append(Mount("/gpuyard/work", str(private / "work"), type="bind"))
        if self.settings.workspace:
            mounts.append(Mount("/workspace", self.settings.workspace, type="bind"))
        if config.args_via_stdin is not None:
            (private / "stdin").write_bytes(config.args_via_stdin)
            mounts.append(Mount("/gpuyard/stdin", str(private / "stdin"), type="bind", read_only=True))
        if not options.get("resume_sha256"):
            return mounts, ""
        name = str(options.get("resume_name") or "checkpoint")
        directory = bool(options.get("resume_directory"))
        self._blobs.restore(options["resume_sha256"], private / "resume" / name, directory=directory)
        mounts.append(Mount("/gpuyard/resume", str(private / "resume"), type="bind"))
        return mounts, f"/gpuyard/resume/{name}"

    def _environment(self, config: JobConfig, uuids: Sequence[str], resume_from: str) -> dict[str, str]:
        """The host's PATH and HOME mean nothing in an image."""
        given = {name: value for name, value in config.environment.items() if name != "PATH"}
        ours = {
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
            "NVIDIA_VISIBLE_DEVICES": ",".join(uuids) or "void",
            "GPUYARD_JOB_ID": str(config.provider_options.get("job_id", "")),
            "GPUYARD_ATTEMPT_ID": config.attempt_id or "",
            "GPUYARD_ATTEMPT": str(config.token),
            **({"GPUYARD_RESUME_FROM": resume_from} if resume_from else {}),
        }
        return {"PYTHONUNBUFFERED": "1", "HOME": "/tmp", **given, **ours}

    async def _started(self, container: Container) -> str:
        """Start it unless it has been; why it cannot be stays with the container."""
        if container.status == "created" and not _state(container)["Error"]:
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
        """One list for all, and one more question for each that has begun or ended since."""
        there = {item["Names"][0].lstrip("/"): item for item in await self._listed() if item.get("Names")}
        found: dict[str, JobResult] = {}
        for job_id in job_ids:
            if job_id in there:
                with suppress(JobNotFoundError):
                    container = await self._find(job_id)
                    found[job_id] = await self._look(container)
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
        state, name = _state(container), str(container.name)
        began, done = _time(state["StartedAt"]), _time(state["FinishedAt"])
        result = JobResult(name, JobStatus.RUNNING, _time(container.attrs["Created"]), began)
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
        name, limits = str(container.name), _limits(container)
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
        asyncio.create_task(self._see_out(name))  # noqa: RUF006  it holds itself by the loop until the end

    async def _see_out(self, name: str) -> None:
        """Whoever is on its way out is not left alone until it is gone."""
        with suppress(ProviderError):
            while _live(container := await self._find(name)):
                await self._tend(container)
                await asyncio.sleep(0.1)

    async def _tend(self, container: Container) -> None:
        """What the time calls for: its timeout, a checkpoint, TERM, KILL."""
        if not _live(container):
            return
        name, limits, now = str(container.name), _limits(container), time.monotonic()
        stop = self._stops.get(name)
        if stop is not None:
            if now >= stop.kill_at:
                await self._signal(container, "KILL")
            elif now >= stop.term_at:
                stop.term_at = stop.kill_at
                await self._signal(container, "TERM")
            return
        began = _time(_state(container)["StartedAt"]) or time.time()
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
        attempt_id = container.labels[_ATTEMPT]
        await self._call(container.remove, force=True)
        await asyncio.to_thread(shutil.rmtree, self._folder / attempt_id, ignore_errors=True)
        self._stops.pop(job_id, None)
        self._saved_at.pop(job_id, None)

    # --- output ---

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface."""
        container = await self._find(job_id)
        if lines == 0:
            return ""
        # Of one that never stops writing, all there is now is everything until now.
        until = time.time() if lines is None and _live(container) else None
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
        async for part in _in_thread(source):
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


def _reference(image: str) -> tuple[str, str]:
    """Repository and tag; without a tag Docker would pull all there are."""
    name, _, digest = image.partition("@")
    if digest:
        return name, digest
    head, _, last = image.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{head}/{repository}" if head else repository, tag or "latest"


def _state(container: Container) -> dict[str, Any]:
    found: dict[str, Any] = container.attrs["State"]
    return found


def _live(container: Container) -> bool:
    return container.status in ("running", "paused", "restarting")


def _limits(container: Container) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(container.labels[_LIMITS])
    return found


def _time(text: str) -> float | None:
    """Docker's times have nanoseconds, and the year 1 stands for never."""
    if text.startswith("0001"):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


async def _in_thread(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A blocking iterator, read in a thread of its own for as long as anybody listens."""
    loop, parts = asyncio.get_running_loop(), asyncio.Queue[bytes | ProviderError | None](64)
    left = threading.Event()

    def put(part: bytes | ProviderError | None) -> None:
        done = asyncio.run_coroutine_threadsafe(parts.put(part), loop)
        while not left.is_set():
            with suppress(TimeoutError):
                done.result(1.0)
                return
        done.cancel()

    def read() -> None:
        end: ProviderError | None = None
        try:
            for part in source:
                put(part)
                if left.is_set():
                    return
        except Exception as error:  # noqa: BLE001  whatever it is, the listener has to hear of it
            end = ProviderError(f"The output broke off: {error}", "docker", "NOT_CONNECTED")
        with suppress(RuntimeError):  # the loop is gone
            put(end)

    threading.Thread(target=read, name="docker-log", daemon=True).start()
    try:
        while (part := await parts.get()) is not None:
            if isinstance(part, ProviderError):
                raise part
            yield part
    finally:
        left.set()
        with suppress(Exception):
            source.close()  # pyright: ignore[reportAttributeAccessIssue]
