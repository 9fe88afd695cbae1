"""One resident: a model server that runs as a job. Its health checks, its warm-up, and
how it is put to sleep and woken.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuyard.controller.intake import PreparedJob, Template
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec, Resources
from gpuyard.domain.models import ModelSpec, ServerLaunch, launch, warm_up
from gpuyard.domain.own_options import ModelPlace
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import check_move
from gpuyard.gateway.request_queue import Replica
from gpuyard.residency.fleet import PHASE_MOVES, Phase
from gpuyard.resource_manager.node_ports import MOST_REQUESTS, NodePort

if TYPE_CHECKING:
    import httpx

_BOOT_CHECK_EVERY_S = 0.2
_CHECK_EVERY_S = 5.0
# A server that fails this many checks in a row is ended.
_MAX_FAILED_CHECKS = 3
_ANSWER_TIMEOUT_S = 5.0
_WARM_UP_TIMEOUT_S = 600.0
# Some servers answer before they are asleep or awake; they are given this long.
_SLEEP_CHANGE_S = 5.0
# After a failed server, the next one starts after this time, which doubles each time.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0
# After this many failures in a row, requests for the model are refused.
_REFUSE_AFTER = 3
# A failure after this time of good answers counts as the first.
_PROVEN_S = 60.0


def _now() -> float:
    # Looked up at each call, so that a simulation can have a clock of its own.
    return time.monotonic()


class UnhealthyError(Exception):
    """The server cannot be used. The text says why."""


@dataclass(slots=True, eq=False)
class Resident:
    """A model server: its job, its GPUs and its port.

    `since`: when its phase began (monotonic seconds). `replica`: exists once the server
    answers. `health_task` checks its health, and `fault` is what that found wrong.
    `must_leave`: it leaves its GPUs once its requests are answered; with `must_unload`
    it may not sleep instead. `changing` is held while it is put to sleep or woken.
    `gone` is set when its job has ended. `booted_here`: the first health check failed,
    so this gpuyard server observes its boot. `node_port`: what leads to it on a machine
    that has joined, from the port `port_here`.
    """

    model: str
    job_id: str
    gpus: tuple[str, ...]
    port: int
    phase: Phase = Phase.BOOTING
    since: float = field(default_factory=_now)
    replica: Replica | None = None
    health_task: asyncio.Task[None] | None = None
    fault: str = ""
    must_leave: bool = False
    must_unload: bool = False
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    booted_here: bool = False
    node_port: NodePort | None = None
    port_here: int | None = None

    @property
    def gpu(self) -> str:
        """The first of its GPUs; most have one."""
        return self.gpus[0]

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port_here or self.port}"

    def slots(self, spec: ModelSpec) -> int:
        """How many requests it answers at once."""
        return min(spec.slots, MOST_REQUESTS) if self.node_port else spec.slots

    async def reach_by(self, node_port: NodePort) -> None:
        """Let requests go this way from now on; OSError."""
        if self.node_port is None:
            self.port_here = await node_port.open()
            self.node_port = node_port

    def close_port(self) -> None:
        """Let nothing more go there."""
        if self.node_port:
            self.node_port.close()
            self.node_port = None

    @property
    def is_changing(self) -> bool:
        """True while it is being put to sleep or woken."""
        return self.changing.locked()

    def drain(self) -> None:
        """Give it no more requests."""
        if self.replica:
            self.replica.draining = True

    def leave(self, *, must_unload: bool = False) -> None:
        """Let it leave its GPUs once its requests are answered: it goes to sleep, or is
        unloaded if it cannot sleep or `must_unload` is true.
        """
        # One that is falling asleep leaves its GPUs already; it may still have to end.
        is_leaving = self.phase is Phase.UNLOADING or not self.is_awake
        self.must_leave = must_unload or not is_leaving
        self.must_unload = must_unload
        self.drain()

    @property
    def may_stay(self) -> bool:
        """True if it must leave for something that may need its GPUs no more, and has
        not left yet.
        """
        is_there = self.phase is Phase.READY and not self.is_changing
        return self.must_leave and not self.must_unload and is_there

    @property
    def can_leave_now(self) -> bool:
        """True if it must leave and has no request left to answer."""
        if not self.must_leave or self.is_changing or self.phase is Phase.UNLOADING:
            return False
        return self.replica is None or not self.replica.busy

    @property
    def is_awake(self) -> bool:
        """True if it holds memory of its GPUs."""
        return self.phase is not Phase.ASLEEP

    def stop_checks(self) -> None:
        """Stop checking its health."""
        if self.health_task and self.health_task is not asyncio.current_task():
            self.health_task.cancel()

    def enter(self, phase: Phase) -> None:
        """Change its phase; raises IllegalMoveError."""
        check_move(PHASE_MOVES, f"model {self.model}", self.phase, phase)
        self.phase = phase
        self.since = time.monotonic()

    @property
    def current_phase(self) -> Phase:
        """Its phase; BUSY if all its slots are taken."""
        if self.phase is not Phase.READY or self.replica is None:
            return self.phase
        all_slots_taken = self.replica.taken >= self.replica.slots
        return Phase.BUSY if all_slots_taken else Phase.READY

    @property
    def cools(self) -> bool:
        """True while it pauses between two requests."""
        is_taken = self.current_phase is Phase.BUSY
        return is_taken and self.replica is not None and not self.replica.busy


class Failure:
    """The failures in a row of one model's servers, the reason of the last one, and
    until when (monotonic seconds) no other server is started.
    """

    __slots__ = ("count", "reason", "until")

    def __init__(self) -> None:
        self.count = 0
        self.until = 0.0
        self.reason = ""

    @property
    def refuses_requests(self) -> bool:
        """True after so many failures that requests for the model are refused."""
        return self.count >= _REFUSE_AFTER

    def add(self, reason: str, resident: Resident) -> None:
        """Count the failure of `resident`."""
        now = time.monotonic()
        proven = resident.phase is Phase.READY and now - resident.since > _PROVEN_S
        self.count = 1 if proven else self.count + 1
        self.reason = reason
        pause_s = _FIRST_PAUSE_S * 2.0 ** (self.count - 1)
        self.until = now + min(pause_s, _LONGEST_PAUSE_S)


def free_port() -> int:
    """A port that is free now.

    If another program takes it first, the server fails and is started again.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_job(
    model: str, spec: ModelSpec, gpus: tuple[str, ...], port: int, *, beside: bool
) -> PreparedJob:
    """The job that runs the model's server on these GPUs.

    It books them, unless it comes `beside` another model that has booked them.
    """
    start = launch(model, spec, port)
    request = GpuRequest(count=0) if beside else GpuRequest(count=len(gpus), uuid=gpus)
    job = JobSpec(
        name=f"model {model}",
        kind=JobKind.MODEL,
        command=start.command,
        environment=start.environment,
        secrets=spec.secrets,
        model=model,
        resources=Resources(gpus=request),
        priority=5,
        provider_options=ModelPlace(port, tuple(gpus), spec.joined).to_options(),
    )
    return PreparedJob.of(Template.of(job, ()), job)


def model_shape(spec: ModelSpec) -> Shape:
    """The place that the model needs, wherever that is."""
    return Shape(
        cpus=0.0,
        gpus=spec.gpus,
        gpu_memory_gb=spec.memory_gb,
        owned=True,
        portable=spec.joined,
    ).interned()


async def watch_health(
    resident: Resident,
    spec: ModelSpec,
    client: "httpx.AsyncClient",
    on_ready: Callable[[], None],
    is_reached: Callable[[], bool] = lambda: True,
) -> None:
    """Wait until the server is healthy and warm, call `on_ready`, then check its health
    for ever. `on_ready` is called again when a suspended replica is healthy. While it
    cannot be reached (`is_reached`), it is suspended.

    A server that is found asleep stays asleep. Raises UnhealthyError.
    """
    start = launch(resident.model, spec, resident.port)
    await _until_healthy(resident, spec, client, start.health)
    resident.replica = Replica(
        resident.job_id,
        resident.model,
        resident.url,
        start.served_name,
        resident.slots(spec),
        resident.gpus,
    )
    # A server that has just booted is awake; only an adopted one may be asleep.
    may_be_asleep = bool(start.asleep) and not resident.booted_here
    if may_be_asleep and await _is_asleep(resident, client, start):
        if resident.phase is not Phase.ASLEEP:
            resident.enter(Phase.ASLEEP)
    elif resident.phase is Phase.ASLEEP:
        raise UnhealthyError("it is awake on a GPU that another job has booked")
    else:
        if spec.warm_up and resident.booted_here:
            await _warm_up(resident, client, start.served_name)
        resident.enter(Phase.READY)
    on_ready()
    await _until_unhealthy(resident, client, start.health, on_ready, is_reached)
    raise UnhealthyError(f"it no longer answers {start.health}")


async def _until_unhealthy(
    resident: Resident,
    client: "httpx.AsyncClient",
    health_path: str,
    on_ready: Callable[[], None],
    is_reached: Callable[[], bool],
) -> None:
    replica = resident.replica
    assert replica
    failed_checks = 0
    while failed_checks < _MAX_FAILED_CHECKS:
        pause_s = _BOOT_CHECK_EVERY_S if replica.suspended else _CHECK_EVERY_S
        await asyncio.sleep(pause_s)
        if not is_reached():
            replica.suspended = True
        elif await _is_healthy(resident, client, health_path):
            failed_checks = 0
            if replica.suspended:
                on_ready()
        else:
            failed_checks += 1


async def change_sleep(
    resident: Resident, spec: ModelSpec, client: "httpx.AsyncClient", *, to_sleep: bool
) -> None:
    """Put the server to sleep, or wake it.

    Raises UnhealthyError if it does not obey.
    """
    import httpx

    start = launch(resident.model, spec, resident.port)
    path = start.sleep if to_sleep else start.wake
    body = start.sleep_body if to_sleep else start.wake_body
    try:
        answer = await client.post(
            resident.url + path, json=body or None, timeout=spec.boot_timeout_s
        )
        if answer.is_success and await _reaches_sleep(
            resident, client, start, asleep=to_sleep
        ):
            return
    except httpx.HTTPError as error:
        raise UnhealthyError(
            f"it does not answer {path}: {error or type(error).__name__}"
        ) from None
    raise UnhealthyError(
        f"{path} answered {answer.status_code} and did not do it: {answer.text[:200]!r}"
    )


async def _reaches_sleep(
    resident: Resident,
    client: "httpx.AsyncClient",
    start: ServerLaunch,
    *,
    asleep: bool,
) -> bool:
    """Wait until the server is asleep, or awake; False if that takes too long."""
    deadline = time.monotonic() + _SLEEP_CHANGE_S
    while await _is_asleep(resident, client, start) is not asleep:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_BOOT_CHECK_EVERY_S)
    return True


async def _is_asleep(
    resident: Resident, client: "httpx.AsyncClient", start: ServerLaunch
) -> bool:
    import httpx

    try:
        answer = await client.get(
            resident.url + start.asleep, timeout=_ANSWER_TIMEOUT_S
        )
        return start.sleeping(answer.json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        raise UnhealthyError(
            f"it does not say at {start.asleep} whether it sleeps"
        ) from None


async def _until_healthy(
    resident: Resident, spec: ModelSpec, client: "httpx.AsyncClient", health: str
) -> None:
    deadline = time.monotonic() + spec.boot_timeout_s
    while not await _is_healthy(resident, client, health):
        resident.booted_here = True
        if time.monotonic() > deadline:
            way = resident.node_port
            why = f": {way.problem}" if way and way.problem else ""
            raise UnhealthyError(
                f"it was not healthy ({health}) within {spec.boot_timeout_s:g} s{why}"
            )
        await asyncio.sleep(_BOOT_CHECK_EVERY_S)


async def _is_healthy(
    resident: Resident, client: "httpx.AsyncClient", path: str
) -> bool:
    import httpx

    try:
        answer = await client.get(resident.url + path, timeout=_ANSWER_TIMEOUT_S)
    except httpx.HTTPError:
        return False
    return answer.is_success


async def _warm_up(
    resident: Resident, client: "httpx.AsyncClient", served_name: str
) -> None:
    """Send one short request: the server then loads what it loads lazily, and its
    answer shows that it works.
    """
    import httpx

    try:
        answer = await client.post(
            f"{resident.url}/v1/chat/completions",
            json=warm_up(served_name),
            timeout=_WARM_UP_TIMEOUT_S,
        )
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise UnhealthyError(
            f"its first answer is no answer: {error or type(error).__name__}"
        ) from None
    if not answer.is_success or not isinstance(body, dict) or "choices" not in body:
        raise UnhealthyError(
            f"its first answer is no answer (HTTP {answer.status_code}):"
            f" {answer.text[:200]!r}"
        )
