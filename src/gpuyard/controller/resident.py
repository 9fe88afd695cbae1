"""One resident: a model server that runs as a job, from its start over its health to its end."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuyard.controller.intake import Prepared, Template
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec, Resources
from gpuyard.domain.models import ModelSpec, launch, warm_up
from gpuyard.gateway.line import Replica
from gpuyard.scheduler.fleet import Phase

if TYPE_CHECKING:
    import httpx

# A server that is starting is asked this often; one that answers, this often, and so often in vain before it is ended.
_BOOT_LOOK_S, _LOOK_S, _MISSES = 0.2, 5.0, 3
_ANSWER_S, _WARM_UP_S = 5.0, 600.0
# After a server failed, the next is tried after so long, doubled each time; so many failures in a row are told.
_AGAIN_S, _LONGEST_S, _TOLD = 1.0, 300.0, 3
# One that has answered for so long was well: an end after that is the first of its kind.
_PROVEN_S = 60.0


class UnhealthyError(Exception):
    """The server is of no use. The text says why."""


@dataclass(slots=True, eq=False)
class Resident:
    """A model's server: its job, its GPU and its port. `since`: when its phase began, in monotonic seconds.

    `replica` is there from the moment it answers; `care` looks after it, and `fault` is what it found wrong. `leaving`:
    it is to go once it has answered what it is at. `over` is set when it is gone. `booted_here`: it was not well at
    first, so this server sees its boot.
    """

    model: str
    job_id: str
    gpu: str
    port: int
    phase: Phase = Phase.BOOTING
    since: float = field(default_factory=time.monotonic)
    replica: Replica | None = None
    care: asyncio.Task[None] | None = None
    fault: str = ""
    leaving: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    booted_here: bool = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def drain(self) -> None:
        """It gets no more requests."""
        if self.replica:
            self.replica.draining = True

    def leave(self) -> None:
        """It is to go as soon as it has nothing to do."""
        self.leaving = self.phase is not Phase.UNLOADING
        self.drain()

    @property
    def may_leave(self) -> bool:
        """Whether it was asked to go and has nothing to do."""
        return self.leaving and self.phase is not Phase.UNLOADING and not (self.replica and self.replica.busy)

    def let_go(self) -> None:
        """Look after it no longer."""
        if self.care and self.care is not asyncio.current_task():
            self.care.cancel()

    def enter(self, phase: Phase) -> None:
        """It is in this phase from now on."""
        self.phase, self.since = phase, time.monotonic()

    @property
    def now_in(self) -> Phase:
        """Its phase, told by what it is answering just now."""
        busy = self.phase is Phase.READY and self.replica is not None and self.replica.busy >= self.replica.slots
        return Phase.BUSY if busy else self.phase


class Failure:
    """A model's servers fail: how often in a row, until when none is tried (monotonic seconds), and why."""

    __slots__ = ("count", "reason", "until")

    def __init__(self) -> None:
        self.count, self.until, self.reason = 0, 0.0, ""

    @property
    def told(self) -> bool:
        """It has failed so often that whoever asks for the model is told so."""
        return self.count >= _TOLD

    def again(self, reason: str, resident: Resident) -> None:
        """One more: `resident` has failed."""
        proven = resident.phase is Phase.READY and time.monotonic() - resident.since > _PROVEN_S
        self.count = 1 if proven else self.count + 1
        self.reason = reason
        self.until = time.monotonic() + min(_AGAIN_S * 2.0 ** (self.count - 1), _LONGEST_S)


def free_port() -> int:
    """A port that nobody has just now. Whoever takes it first has it: a server that comes late ends and is retried."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_job(model: str, spec: ModelSpec, gpu: str, port: int) -> Prepared:
    """The job that runs the model's server on the GPU."""
    start = launch(model, spec, port)
    job = JobSpec(
        name=f"model {model}", kind=JobKind.MODEL, command=start.command, environment=start.environment, model=model,
        resources=Resources(gpus=GpuRequest(count=1, uuid=(gpu,))), priority=5, provider_options={"port": port},
    )  # fmt: skip
    return Prepared.of(Template.of(job, ()), job)


async def attend(resident: Resident, spec: ModelSpec, client: "httpx.AsyncClient", ready: Callable[[], None]) -> None:
    """Wait until the server is healthy and warm, call `ready`, and see to it that it stays so; UnhealthyError."""
    start = launch(resident.model, spec, resident.port)
    await _until_healthy(resident, spec, client, start.health)
    if spec.warm_up and resident.booted_here:
        await _warm_up(resident, client, start.served_name)
    resident.replica = Replica(resident.job_id, resident.model, resident.url, start.served_name, spec.slots)
    resident.enter(Phase.READY)
    ready()
    misses = 0
    while misses < _MISSES:
        await asyncio.sleep(_BOOT_LOOK_S if resident.replica.suspended else _LOOK_S)
        misses = 0 if await _is_healthy(resident, client, start.health) else misses + 1
        if not misses and resident.replica.suspended:
            ready()
    raise UnhealthyError(f"it no longer answers {start.health}")


async def _until_healthy(resident: Resident, spec: ModelSpec, client: "httpx.AsyncClient", health: str) -> None:
    deadline = time.monotonic() + spec.boot_timeout_s
    while not await _is_healthy(resident, client, health):
        resident.booted_here = True
        if time.monotonic() > deadline:
            raise UnhealthyError(f"it was not healthy ({health}) within {spec.boot_timeout_s:g} s")
        await asyncio.sleep(_BOOT_LOOK_S)


async def _is_healthy(resident: Resident, client: "httpx.AsyncClient", path: str) -> bool:
    import httpx

    try:
        return (await client.get(resident.url + path, timeout=_ANSWER_S)).is_success
    except httpx.HTTPError:
        return False


async def _warm_up(resident: Resident, client: "httpx.AsyncClient", served_name: str) -> None:
    """One short request: it loads what is loaded lazily, and shows that the answers are answers."""
    import httpx

    try:
        answer = await client.post(f"{resident.url}/v1/chat/completions", json=warm_up(served_name), timeout=_WARM_UP_S)
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise UnhealthyError(f"its first answer is no answer: {error or type(error).__name__}") from None
    if not answer.is_success or not isinstance(body, dict) or "choices" not in body:
        raise UnhealthyError(f"its first answer is no answer (HTTP {answer.status_code}): {answer.text[:200]!r}")
