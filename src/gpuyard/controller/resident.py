"""One resident: a model server that runs as a job, from its start over its health to its end."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuyard.controller.intake import Prepared, Template
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec, Resources
from gpuyard.domain.models import Launch, ModelSpec, launch, warm_up
from gpuyard.domain.states import check_move
from gpuyard.gateway.line import Replica
from gpuyard.scheduler.fleet import PHASE_MOVES, Phase

if TYPE_CHECKING:
    import httpx

# A server that is starting is asked this often; one that answers, this often, and so often in vain before it is ended.
_BOOT_LOOK_S, _LOOK_S, _MISSES = 0.2, 5.0, 3
_ANSWER_S, _WARM_UP_S, _TURNED_S = 5.0, 600.0, 5.0
# After a server failed, the next is tried after so long, doubled each time; so many failures in a row are told.
_AGAIN_S, _LONGEST_S, _TOLD = 1.0, 300.0, 3
# One that has answered for so long was well: an end after that is the first of its kind.
_PROVEN_S = 60.0


class UnhealthyError(Exception):
    """The server is of no use. The text says why."""


@dataclass(slots=True, eq=False)
class Resident:
    """A model's server: its job, its GPUs and its port. `since`: when its phase began, in monotonic seconds.

    `replica` is there from the moment it answers; `care` looks after it, and `fault` is what it found wrong. `leaving`:
    it is to go once it has answered what it is at (`for_good`: though it could sleep). `turning`: it is
    just being put to sleep or woken. `over` is set when it is gone.
    `booted_here`: it was not well at first, so this server sees its boot.
    """

    model: str
    job_id: str
    gpus: tuple[str, ...]
    port: int
    phase: Phase = Phase.BOOTING
    since: float = field(default_factory=time.monotonic)
    replica: Replica | None = None
    care: asyncio.Task[None] | None = None
    fault: str = ""
    leaving: bool = False
    for_good: bool = False
    turning: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    booted_here: bool = False

    @property
    def gpu(self) -> str:
        """The first of its GPUs; most have one."""
        return self.gpus[0]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def drain(self) -> None:
        """It gets no more requests."""
        if self.replica:
            self.replica.draining = True

    def leave(self, *, for_good: bool = False) -> None:
        """It is to go as soon as it has nothing to do: to sleep, if it can and is not wanted gone `for_good`."""
        self.leaving = self.phase is not Phase.UNLOADING and (for_good or self.phase is not Phase.ASLEEP)
        self.for_good = for_good
        self.drain()

    @property
    def may_leave(self) -> bool:
        """Whether it was asked to go and has nothing to do."""
        ready = not self.turning and not (self.replica and self.replica.busy)
        return self.leaving and self.phase is not Phase.UNLOADING and ready

    @property
    def awake(self) -> bool:
        """It holds memory of its GPU."""
        return self.phase is not Phase.ASLEEP

    def let_go(self) -> None:
        """Look after it no longer."""
        if self.care and self.care is not asyncio.current_task():
            self.care.cancel()

    def enter(self, phase: Phase) -> None:
        """It is in this phase from now on; IllegalMoveError."""
        check_move(PHASE_MOVES, f"model {self.model}", self.phase, phase)
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


def server_job(model: str, spec: ModelSpec, gpus: tuple[str, ...], port: int, *, beside: bool) -> Prepared:
    """The job that runs the model's server on the GPUs, which it books unless it comes `beside` another model there."""
    start = launch(model, spec, port)
    request = GpuRequest(count=0) if beside else GpuRequest(count=len(gpus), uuid=gpus)
    job = JobSpec(
        name=f"model {model}", kind=JobKind.MODEL, command=start.command, environment=start.environment, model=model,
        resources=Resources(gpus=request), priority=5, provider_options={"port": port, "gpus": list(gpus)},
    )  # fmt: skip
    return Prepared.of(Template.of(job, ()), job)


def gpus_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPUs that are in a server's `provider_options`; one before models could have several."""
    return tuple(options.get("gpus") or [options["gpu"]])


async def attend(resident: Resident, spec: ModelSpec, client: "httpx.AsyncClient", ready: Callable[[], None]) -> None:
    """Wait until the server is healthy and warm, call `ready`, and see to it that it stays so; UnhealthyError.

    One that is found asleep stays so.
    """
    start = launch(resident.model, spec, resident.port)
    await _until_healthy(resident, spec, client, start.health)
    resident.replica = Replica(resident.job_id, resident.model, resident.url, start.served_name, spec.slots)
    if start.asleep and not resident.booted_here and await _is_asleep(resident, client, start):
        if resident.phase is not Phase.ASLEEP:
            resident.enter(Phase.ASLEEP)
    elif resident.phase is Phase.ASLEEP:
        raise UnhealthyError("it is awake on a GPU that somebody else was given")
    else:
        if spec.warm_up and resident.booted_here:
            await _warm_up(resident, client, start.served_name)
        resident.enter(Phase.READY)
    ready()
    misses = 0
    while misses < _MISSES:
        await asyncio.sleep(_BOOT_LOOK_S if resident.replica.suspended else _LOOK_S)
        misses = 0 if await _is_healthy(resident, client, start.health) else misses + 1
        if not misses and resident.replica.suspended:
            ready()
    raise UnhealthyError(f"it no longer answers {start.health}")


async def turn(resident: Resident, spec: ModelSpec, client: "httpx.AsyncClient", *, to_sleep: bool) -> None:
    """Put the server to sleep, or wake it; UnhealthyError when it does not do as it is told."""
    import httpx

    start = launch(resident.model, spec, resident.port)
    path, body = (start.sleep, start.sleep_body) if to_sleep else (start.wake, start.wake_body)
    try:
        answer = await client.post(resident.url + path, json=body or None, timeout=spec.boot_timeout_s)
        deadline = time.monotonic() + _TURNED_S  # some answer before they have done it
        while answer.is_success and await _is_asleep(resident, client, start) is not to_sleep:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_BOOT_LOOK_S)
        else:
            if answer.is_success:
                return
    except httpx.HTTPError as error:
        raise UnhealthyError(f"it does not answer {path}: {error or type(error).__name__}") from None
    raise UnhealthyError(f"{path} answered {answer.status_code} and did not do it: {answer.text[:200]!r}")


async def _is_asleep(resident: Resident, client: "httpx.AsyncClient", start: Launch) -> bool:
    import httpx

    try:
        answer = await client.get(resident.url + start.asleep, timeout=_ANSWER_S)
        return start.sleeping(answer.json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        raise UnhealthyError(f"it does not say at {start.asleep} whether it sleeps") from None


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
