"""Residents: the models that are loaded. A policy decides which, where and until when; here it is done.

A resident's server runs as a job of kind `model` on its GPU, so that booking, logs, cost and survival of crashes are
those of any job. It is loaded before a decision about jobs, so that a model that is wanted comes before what waits,
and leaves by the cancel of its job. Nothing is kept but in the ledger: a server that starts finds its residents there.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from gpuyard.config.settings import Settings
from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.experience import Experience
from gpuyard.controller.holds import Holds
from gpuyard.controller.requests import Requests
from gpuyard.controller.resident import Failure, Resident, UnhealthyError, attend, free_port, gpus_of, server_job, turn
from gpuyard.controller.sight import Sight
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.models import ModelSpec
from gpuyard.gateway.line import Lines
from gpuyard.scheduler.fleet import Fleet, Phase
from gpuyard.scheduler.rent import Cost
from gpuyard.scheduler.residency import (
    Action,
    Drain,
    Load,
    Lru,
    Residency,
    Run,
    Static,
    Threshold,
    Unload,
    place_model,
    way_for,
)
from gpuyard.scheduler.switching import Move, Switching

if TYPE_CHECKING:
    import httpx

_POLICIES: Mapping[str, Callable[[Settings], Residency]] = {
    "cost": lambda _: Cost(),
    "threshold": lambda s: Threshold(s.resource_manager.eviction_policy.min_script_queue_for_evict),
    # How it deals out batches is `batches`' concern.
    "round_robin": lambda s: Threshold(s.resource_manager.eviction_policy.min_script_queue_for_evict),
    "lru": lambda _: Lru(),
    "static": lambda _: Static(),
}
# What a policy decides in one go; more would be a fault of the policy's.
_MOST_ACTIONS = 1000
_LEAVE_S = 30.0
_START_LOOK_S = 0.1
log = structlog.get_logger(__name__)


class Residents:
    """All models of the settings: `live` by job, `lines` where requests for them wait, `pinned` which never leave."""

    def __init__(self, core: Core, requests: Requests) -> None:
        self._core, self._requests = core, requests
        self.specs: Mapping[str, ModelSpec] = core.settings.models
        self.lines = Lines(self.specs, self._decide_soon)
        self.live: dict[str, Resident] = {}
        self.pinned: set[str] = set()
        self.failures: dict[str, Failure] = {model: Failure() for model in self.specs}
        self.experience = Experience(core, self.specs)
        self.lines.asked = self.experience.asked
        self._holds = Holds(core)
        self._sight = Sight(core, self.specs, self.lines, self.experience, self._measured)
        self._policy = _POLICIES[core.settings.residency.policy](core.settings)
        self._alarm: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._client: httpx.AsyncClient | None = None
        self._leaving = False
        # An exclusive batch runs: nothing is loaded but what it brings back.
        self.closed = False
        # How many scripts stand in line with a job that waits.
        self.items_for: Callable[[str], int] = lambda _: 1

    # --- life ---

    def start(self) -> None:
        """Find what is loaded, and begin to decide."""
        if not self.specs:
            return
        import httpx  # late: a server without models needs no HTTP client

        self._client = httpx.AsyncClient(trust_env=False)
        wished = {row["name"]: row["pinned"] for row in self._core.queries.models()}
        self.experience.recall()
        self.pinned = {model for model, spec in self.specs.items() if wished.get(model, spec.pinned)}
        self.find()

    def find(self) -> None:
        """Find what is loaded; also after memory has run ahead of the ledger, when nothing of it is to be believed."""
        if not self._client:
            return
        for resident in self.live.values():
            self._silence(resident)
        self.live.clear()
        found = self._core.queries.live_of_kind(JobKind.MODEL)
        for job_id, spec in self._core.queries.specs(found).items():
            if spec["model"] in self.specs:
                options = spec["provider_options"]
                resident = Resident(spec["model"], job_id, gpus_of(options), options["port"])
                if self.specs[resident.model].sleeps and self._holds.is_others(resident.gpus, found):
                    resident.phase = Phase.ASLEEP  # it must be: somebody else has its GPU
                self._attend(resident)
                self._holds.promise(job_id, resident.gpus, self.live.values())
            else:  # it is configured no more
                self._core.spawn(self._requests.cancel(job_id), "unload")

    async def close(self) -> None:
        """Let go; the servers run on."""
        self._leaving = True
        for handle in (self._alarm, self._soon):
            if handle:
                handle.cancel()
        for resident in self.live.values():
            resident.let_go()
        if self._client:
            await self._client.aclose()

    async def leave(self) -> None:
        """Unload everything and wait until it is gone: the server stops."""
        self._leaving, there = True, list(self.live.values())
        for resident in there:
            if resident.phase is not Phase.UNLOADING:
                self.unload(resident)
        if there:
            await asyncio.wait([asyncio.ensure_future(r.over.wait()) for r in there], timeout=_LEAVE_S)

    # --- deciding ---

    def _decide_soon(self) -> None:
        """Once for all that happens in this moment."""
        if self._soon is None and self._client:
            self._soon = asyncio.get_running_loop().call_soon(self._decide_now)

    def _decide_now(self) -> None:
        self._soon = None
        self._core.schedule()

    def act(self) -> None:
        """See who is gone, then do what the policy wants by now."""
        for resident in [r for r in self.live.values() if r.job_id not in self._core.view.jobs]:
            self._is_over(resident)
        if (
            self._leaving
            or self._client is None
            or not (self.live or self.pinned or self._is_asked() or self.experience.expected())
        ):
            return
        for resident in [r for r in self.live.values() if r.may_leave]:
            self.put_aside(resident)
        self._keep_holds()
        now = time.monotonic()
        fleet = self.fleet(now)
        self._let_go_of_lost(fleet)
        self._load_pinned(fleet, now)
        for _ in range(_MOST_ACTIONS):
            action = self._policy.act(fleet, now)
            if action is None:
                break
            self._do(action, fleet, now)
        else:
            log.error("the policy has no end of wishes", policy=type(self._policy).__name__)
        self._set_alarm(now)

    def _is_asked(self) -> bool:
        return any(line.waiting for line in self.lines.lines.values())

    def _let_go_of_lost(self, fleet: Fleet) -> None:
        """Servers that wait for a GPU that is out of use would wait for ever; others wait for nobody."""
        for resident in self.live.values():
            lost = any(gpu not in fleet.gpus and self._is_known(gpu) for gpu in resident.gpus)
            if self._waits(resident) and (lost or self._is_in_vain(resident)):
                self.unload(resident)
                for gpu in resident.gpus:
                    if gpu in fleet.gpus:
                        fleet.gpus[gpu].residents.pop(resident.model, None)

    def _waits(self, resident: Resident) -> bool:
        """Whether its server is yet to be started."""
        job = self._core.view.jobs.get(resident.job_id)
        return job is not None and job.attempt_id is None and resident.phase is Phase.BOOTING

    def _is_in_vain(self, resident: Resident) -> bool:
        """Whether places are kept for a model that nobody asks for any more."""
        promised = resident.job_id in self._core.view.promises
        return promised and resident.model not in self.pinned and not self.lines.lines[resident.model].waiting

    def _is_known(self, gpu: str) -> bool:
        """Whether its node has said what has become of it."""
        device = self._core.view.devices.get(gpu)
        return device is None or device.node_id is None or self._core.view.node(device.node_id).online

    def fleet(self, now: float) -> Fleet:
        """What the policy sees at `now`."""
        fleet = self._sight.fleet(self.live.values(), self.pinned, self._tired(now), self.items_for, now)
        fleet.closed = self.closed
        return fleet

    def _measured(self) -> dict[str, float]:
        """Gigabytes free by GPU, as last seen."""
        return {uuid: seen.free_mb / 1024 for uuid, seen in self._requests.gpus.figures().items() if seen.free_mb}

    def would_load_on(self, gpu: str) -> bool:
        """Whether the policy would put a model on this GPU if the script there left now."""
        if any(gpu in resident.gpus and self._waits(resident) for resident in self.live.values()):
            return True  # it waits for the rest of its GPUs
        if self.closed or not self._is_asked():
            return False
        now = time.monotonic()
        fleet = self.fleet(now)
        fleet.expected = {}  # nobody who works leaves for what may come
        if gpu not in fleet.gpus:
            return False
        fleet.gpus[gpu].worker = None
        return isinstance(action := self._policy.act(fleet, now), Load) and gpu in action.gpus

    @property
    def switching(self) -> Switching:
        """How long models take to move."""
        return self.experience.switching

    def _keep_holds(self) -> None:
        self._holds.keep(self.live.values(), self.unload)

    def is_others(self, gpus: Collection[str]) -> bool:
        """Whether one of the GPUs is booked by anybody but models."""
        return self._holds.is_others(gpus, self.live)

    def reload_s(self, model: str) -> float:
        """How long it takes to be back."""
        if model not in self.specs:
            return 0.0
        return self.switching.seconds(model, Move.WAKE if self.specs[model].sleeps else Move.REBOOT)

    def unload_s(self, model: str) -> float:
        """How long it takes to leave."""
        return self.switching.seconds(model, Move.UNLOAD) if model in self.specs else 0.0

    def _tired(self, now: float) -> set[str]:
        return {model for model, failure in self.failures.items() if failure.until > now}

    def _load_pinned(self, fleet: Fleet, now: float) -> None:
        for model in sorted(() if self.closed else self.pinned - self._tired(now)):
            while not fleet.serving(model):
                gpus = place_model(fleet, model)
                step = Load.on(model, gpus) if gpus else way_for(fleet, model)[0]
                if step is None:
                    break
                self._do(step, fleet, now)

    def _do(self, action: Action, fleet: Fleet, now: float) -> None:
        """Carry it out, and let the fleet stand as if it were done."""
        match action:
            case Load(model, gpus):
                self.load(model, gpus)
                fleet.settle(model, gpus, now)
            case Unload(model, gpu):
                self.put_aside(self._at(model, gpu))
                fleet.gpus[gpu].residents[model].phase = Phase.UNLOADING
            case Drain(model, gpu):
                self._at(model, gpu).drain()
                fleet.gpus[gpu].residents[model].draining = True
            case Run(gpu):  # a job's turn, which the decision about jobs gives it
                fleet.gpus[gpu].worker = fleet.scripts.popleft().name

    def _at(self, model: str, gpu: str) -> Resident:
        return next(r for r in self.live.values() if r.model == model and gpu in r.gpus)

    def _set_alarm(self, now: float) -> None:
        wanted = self.pinned | {model for model, line in self.lines.lines.items() if line.waiting}
        rests = [self.failures[model].until for model in self._tired(now) & wanted]
        wake_at = min([self._policy.wake_at, *rests])
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None
        if wake_at < math.inf:
            delay = max(wake_at - now, 0.05)
            self._alarm = asyncio.get_running_loop().call_later(delay, self._core.schedule)

    # --- loading and unloading ---

    def load(self, model: str, gpus: tuple[str, ...]) -> None:
        """Start the model's server on the GPUs, or wake the one that sleeps there.

        A server on several is a job that waits until whoever is there has left.
        """
        sleeper = next((r for r in self.live.values() if (r.model, r.gpus, r.awake) == (model, gpus, False)), None)
        if sleeper:
            sleeper.enter(Phase.BOOTING)
            sleeper.leaving = False
            self._keep_holds()
            self._core.spawn(self._turn(sleeper, to_sleep=False), f"wake-{model}")
            return
        port = free_port()
        beside = len(gpus) == 1 and any(
            r.gpus == gpus and r.awake and self._holds.attempt(r) for r in self.live.values()
        )
        job = server_job(model, self.specs[model], gpus, port, beside=beside)
        self._core.emit([moves.submitted(job, self._core.clock())])
        self._attend(Resident(model, job.id, gpus, port))
        self._holds.promise(job.id, gpus, self.live.values())

    def put_aside(self, resident: Resident) -> None:
        """Put it to sleep if it can, or unload it: it holds no memory of its GPU then."""
        may_sleep = self.specs[resident.model].sleeps and resident.phase is Phase.READY
        if resident.for_good or not may_sleep:
            self.unload(resident)
            return
        resident.leaving = False
        resident.enter(Phase.UNLOADING)
        if resident.replica:
            self.lines.drop(resident.replica)
        self._core.spawn(self._turn(resident, to_sleep=True), f"sleep-{resident.model}")

    async def _turn(self, resident: Resident, *, to_sleep: bool) -> None:
        """Put it to sleep or wake it; a server that does not do as it is told is ended."""
        assert self._client
        resident.turning = True
        try:
            await self._core.committed()  # before it wakes, its GPU is its own
            await turn(resident, self.specs[resident.model], self._client, to_sleep=to_sleep)
        except UnhealthyError as error:
            resident.fault = str(error)
            await self._requests.cancel(resident.job_id)
            return
        finally:
            resident.turning = False
        if self.live.get(resident.job_id) is not resident:
            return  # memory was read anew, and it with it
        move, seconds = Move.UNLOAD if to_sleep else Move.WAKE, time.monotonic() - resident.since
        self.experience.took(resident.model, move, seconds, resident.gpu)
        resident.enter(Phase.ASLEEP if to_sleep else Phase.READY)
        if resident.replica and not to_sleep:
            resident.replica.draining, resident.replica.used_at = False, time.monotonic()
            self.lines.put(resident.replica)
        self._core.schedule()

    def unload(self, resident: Resident) -> None:
        """End its server."""
        resident.enter(Phase.UNLOADING)
        self._silence(resident)
        self._core.spawn(self._requests.cancel(resident.job_id), "unload")

    def _attend(self, resident: Resident) -> None:
        self.live[resident.job_id] = resident
        resident.care = self._core.spawn(self._care(resident), f"resident-{resident.model}")

    async def _care(self, resident: Resident) -> None:
        assert self._client
        # A model of several GPUs may wait for long, and is not late by that.
        while self._waits(resident):  # noqa: ASYNC110  (any commit may be the one)
            await asyncio.sleep(_START_LOOK_S)
        try:
            await attend(resident, self.specs[resident.model], self._client, lambda: self._is_ready(resident))
        except UnhealthyError as error:
            resident.fault = str(error)
            if resident.replica:
                self.lines.drop(resident.replica)
            await self._requests.cancel(resident.job_id)

    def _is_ready(self, resident: Resident) -> None:
        assert resident.replica
        job = self._core.view.jobs.get(resident.job_id)
        if job and job.started_at and resident.booted_here:
            resident.booted_here = False
            self.experience.booted(resident.model, resident.gpu, max(self._core.clock() - job.started_at, 0.0))
        self.experience.is_loaded(resident.model, resident.gpu)
        self.failures[resident.model].reason = ""
        if resident.awake:
            self.lines.put(resident.replica)
        self._decide_soon()

    def _silence(self, resident: Resident) -> None:
        """It gets no more requests and no more care."""
        resident.let_go()
        if resident.replica:
            self.lines.drop(resident.replica)

    def _is_over(self, resident: Resident) -> None:
        """Its job is over: as we wished, or it failed."""
        del self.live[resident.job_id]
        self._silence(resident)
        resident.over.set()
        if resident.phase is Phase.UNLOADING and not resident.fault:
            self.experience.took(resident.model, Move.UNLOAD, time.monotonic() - resident.since, resident.gpu)
            return
        why = resident.fault or _how_it_ended(self._core.queries.job(resident.job_id) or {})
        failure = self.failures[resident.model]
        failure.again(f"{why}; `gpuyard logs {resident.job_id[-8:]}` shows what it said", resident)
        log.warning("a model server failed", model=resident.model, cause=why, times=failure.count)
        if failure.told:
            self.lines.refuse(resident.model, f"{resident.model} cannot be loaded: {failure.reason}")


def _how_it_ended(row: Mapping[str, Any]) -> str:
    """What the ledger says of a server's job; its end may not be in there yet."""
    if not row.get("ended_at"):
        return "its server ended"
    left = row["exit_code"]
    return f"its server ended ({row['reason'] or row['state']}{'' if left is None else f' {left}'})"
