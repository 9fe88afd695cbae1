"""Model servers: starts them, puts them to sleep, wakes and ends them.

A server runs as a job of kind `model` on its GPUs. So booking, logs, cost and recovery
work as for any job, and unloading is a cancel. Only the ledger remembers the servers: a
gpuyard server that starts finds them there.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.controller.job_streams import JobStreams
from gpuyard.controller.requests import Requests
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.models import ModelSpec, launch
from gpuyard.domain.own_options import ModelPlace
from gpuyard.domain.reasons import Reason
from gpuyard.gateway.request_queue import RequestQueues
from gpuyard.residency.fleet import Phase
from gpuyard.residency.switching import Switch
from gpuyard.resource_manager.learned_timings import LearnedTimings
from gpuyard.resource_manager.node_ports import NodePort
from gpuyard.resource_manager.resident import (
    Failure,
    Resident,
    UnhealthyError,
    change_sleep,
    free_port,
    server_job,
    watch_health,
)
from gpuyard.resource_manager.shared_bookings import SharedBookings
from gpuyard.scheduler.nodes import Node

if TYPE_CHECKING:
    import httpx

_UNLOAD_TIMEOUT_S = 30.0
_START_CHECK_EVERY_S = 0.1
log = structlog.get_logger(__name__)


class ModelServers:
    """All model servers, in `live` by job; `failures` are by model.

    `on_change` is called when a server starts and when it becomes ready. `streams` lead
    to those on machines that have joined.
    """

    def __init__(
        self,
        core: Core,
        requests: Requests,
        timings: LearnedTimings,
        request_queues: RequestQueues,
        on_change: Callable[[], None],
        streams: JobStreams,
    ) -> None:
        self._core = core
        self._streams = streams
        self._requests = requests
        self._timings = timings
        self._request_queues = request_queues
        self._on_change = on_change
        self._specs: Mapping[str, ModelSpec] = core.settings.models
        self._bookings = SharedBookings(core)
        self._client: httpx.AsyncClient | None = None
        self.live: dict[str, Resident] = {}
        self.failures: dict[str, Failure] = {model: Failure() for model in self._specs}

    # --- start and stop ---

    def start(self) -> None:
        """Prepare the HTTP client; call `find` afterwards."""
        import httpx  # late: a gpuyard server without models needs no HTTP client

        # They are on this machine and without TLS; to read certificates takes 20 ms.
        transport = httpx.AsyncHTTPTransport(verify=False)
        self._client = httpx.AsyncClient(trust_env=False, transport=transport)

    @property
    def is_started(self) -> bool:
        """True after `start`."""
        return self._client is not None

    def find(self) -> None:
        """Find the servers in the ledger: at the start, and again after a failed
        commit, when memory cannot be trusted. Those that the settings would start in
        another way, or not at all, are ended.
        """
        before = dict(self.live)
        for resident in before.values():
            self._disconnect(resident)
        self.live.clear()
        live_jobs = self._core.view.jobs.values()
        jobs = [job.id for job in live_jobs if job.kind == JobKind.MODEL]
        for job_id, spec in self._core.queries.specs(jobs).items():
            if self.is_started and self._is_as_configured(spec):
                self._adopt(job_id, spec, jobs, before.get(job_id))
            else:
                log.info("a model server is ended", model=spec["model"], job=job_id)
                self._core.spawn(
                    self._requests.cancel(job_id, Reason.EVICTED), "unload"
                )

    def _is_as_configured(self, spec: Mapping[str, Any]) -> bool:
        """Whether the settings would start this server, of an earlier gpuyard server,
        in the same way.
        """
        model = self._specs.get(spec["model"])
        if model is None:
            return False
        place = ModelPlace.read(spec["provider_options"])
        wanted = launch(spec["model"], model, place.port)
        return (
            len(place.gpus) == model.gpus
            and place.joined == model.joined
            and tuple(spec["command"]) == wanted.command
            and spec.get("environment", {}) == wanted.environment
            and spec.get("secrets", {}) == model.secrets
        )

    def _adopt(
        self,
        job_id: str,
        spec: Mapping[str, Any],
        model_jobs: Collection[str],
        before: Resident | None,
    ) -> None:
        """Look after a server that runs already. `before`: what looked after it until
        memory was read again.
        """
        place = ModelPlace.read(spec["provider_options"])
        resident = Resident(spec["model"], job_id, place.gpus, place.port)
        if before:
            # It may be on its way to sleep: nobody can take that request back.
            resident.changing = before.changing
        may_sleep = self._specs[resident.model].sleeps
        has_begun = not self.is_waiting(resident)
        has_lost_gpu = self._bookings.booked_by_others(place.gpus, model_jobs)
        if may_sleep and has_begun and has_lost_gpu:
            # Another job has its GPU, so it can only be asleep.
            resident.phase = Phase.ASLEEP
        self._look_after(resident)
        self._bookings.reserve(job_id, place.gpus, self.live.values())

    async def close(self) -> None:
        """Stop looking after the servers; they run on."""
        for resident in self.live.values():
            resident.stop_checks()
            resident.close_port()
        if self._client:
            await self._client.aclose()

    async def unload_all(self) -> None:
        """Unload all servers, and wait for a while until they are gone."""
        residents = list(self.live.values())
        for resident in residents:
            if resident.phase is not Phase.UNLOADING:
                self.unload(resident)
        if residents:
            waits = [asyncio.ensure_future(each.gone.wait()) for each in residents]
            await asyncio.wait(waits, timeout=_UNLOAD_TIMEOUT_S)

    # --- facts ---

    def on(self, model: str, gpu: str) -> Resident:
        """The server of the model on this GPU, which must exist."""
        return next(
            resident
            for resident in self.live.values()
            if resident.model == model and gpu in resident.gpus
        )

    def jobs_on(self, gpu: str) -> list[str]:
        """The jobs of the servers that hold memory of the GPU."""
        return [resident.job_id for resident in self._holders_of(gpu)]

    def models_on(self, gpu: str) -> list[str]:
        """The models that hold memory of the GPU."""
        return [resident.model for resident in self._holders_of(gpu)]

    def _holders_of(self, gpu: str) -> list[Resident]:
        return [
            resident
            for resident in self.live.values()
            if gpu in resident.gpus
            and resident.is_awake
            and not self.is_waiting(resident)
        ]

    def node_of(self, resident: Resident) -> Node:
        """The node of its GPUs; one without a name while that is not known."""
        device = self._core.view.devices.get(resident.gpu)
        node_id = device.node_id if device else None
        return self._core.view.node(node_id) if node_id else Node("")

    def is_waiting(self, resident: Resident) -> bool:
        """Whether its job has not started yet."""
        job = self._core.view.jobs.get(resident.job_id)
        is_queued = job is not None and job.attempt_id is None
        return is_queued and resident.phase is Phase.BOOTING

    def booked_by_others(self, gpus: Collection[str]) -> bool:
        """Whether a job that runs no model has booked one of the GPUs."""
        return self._bookings.booked_by_others(gpus, self.live)

    # --- load and unload ---

    def load(self, model: str, gpus: tuple[str, ...]) -> None:
        """Start the model's server on the GPUs, or wake the one that sleeps there.

        The job of a server on several GPUs waits until all of them are free.
        """
        sleeping = self._sleeping(model, gpus)
        if sleeping:
            sleeping.enter(Phase.BOOTING)
            sleeping.must_leave = False
            self.update_bookings()
            self._core.spawn(
                self._change_sleep(sleeping, to_sleep=False), f"wake-{model}"
            )
            return
        port = free_port()
        beside = len(gpus) == 1 and self._is_booked_by_model(gpus)
        job = server_job(model, self._specs[model], gpus, port, beside=beside)
        self._core.emit([transitions.submitted(job, self._core.clock())])
        self._look_after(Resident(model, job.id, gpus, port))
        self._bookings.reserve(job.id, gpus, self.live.values())

    def _is_booked_by_model(self, gpus: tuple[str, ...]) -> bool:
        return any(
            resident.gpus == gpus
            and resident.is_awake
            and self._bookings.attempt_of(resident)
            for resident in self.live.values()
        )

    def start_beside(self) -> None:
        """Start servers beside the model that has booked their GPU, for which they
        would wait for ever: both were to be loaded at the same moment.
        """
        for resident in list(self.live.values()):
            job = self._core.view.jobs.get(resident.job_id)
            asks_for_one = job is not None and job.shape.gpus == 1
            if not asks_for_one or not self.is_waiting(resident):
                continue
            if not self._is_booked_by_model(resident.gpus):
                continue
            del self.live[resident.job_id]
            self._disconnect(resident)
            resident.gone.set()
            self._core.spawn(
                self._requests.cancel(resident.job_id, Reason.EVICTED), "unload"
            )
            is_there = any(
                other.model == resident.model and other.gpus == resident.gpus
                for other in self.live.values()
            )
            if not is_there:
                self.load(resident.model, resident.gpus)

    def _sleeping(self, model: str, gpus: tuple[str, ...]) -> Resident | None:
        for resident in self.live.values():
            is_same = resident.model == model and resident.gpus == gpus
            if is_same and not resident.is_awake:
                return resident
        return None

    def sleep_or_unload(self, resident: Resident) -> None:
        """Free the memory of its GPUs: put it to sleep if it can, else unload it."""
        may_sleep = self._specs[resident.model].sleeps and not resident.must_unload
        if not may_sleep or resident.phase is not Phase.READY:
            self.unload(resident)
            return
        resident.must_leave = False
        resident.enter(Phase.UNLOADING)
        if resident.replica:
            self._request_queues.drop(resident.replica)
        self._core.spawn(
            self._change_sleep(resident, to_sleep=True), f"sleep-{resident.model}"
        )

    def stay(self, resident: Resident) -> None:
        """Give a server requests again that was about to leave."""
        resident.must_leave = False
        if resident.replica:
            resident.replica.draining = False
            self._request_queues.put(resident.replica)

    def unload(self, resident: Resident) -> None:
        """End the server."""
        resident.enter(Phase.UNLOADING)
        self._disconnect(resident)
        self._core.spawn(
            self._requests.cancel(resident.job_id, Reason.EVICTED), "unload"
        )

    def update_bookings(self) -> None:
        """Let one awake model on each shared GPU book it."""
        self._bookings.update(self.live.values(), self.unload)

    async def _change_sleep(self, resident: Resident, *, to_sleep: bool) -> None:
        """Put the server to sleep or wake it; end it if it does not obey."""
        assert self._client
        try:
            async with resident.changing:
                # It may wake only after the booking of its GPU is committed.
                await self._core.committed()
                if self.live.get(resident.job_id) is not resident:
                    return  # memory was read again, so nobody has decided this
                spec = self._specs[resident.model]
                await change_sleep(resident, spec, self._client, to_sleep=to_sleep)
        except UnhealthyError as error:
            resident.fault = str(error)
            await self._requests.cancel(resident.job_id)
            return
        if self.live.get(resident.job_id) is not resident:
            return  # memory was read again, with a new object for this server
        move = Switch.UNLOAD if to_sleep else Switch.WAKE
        seconds = time.monotonic() - resident.since
        self._timings.took(resident.model, move, seconds, resident.gpu)
        resident.enter(Phase.ASLEEP if to_sleep else Phase.READY)
        if resident.replica and not to_sleep:
            resident.replica.draining = False
            resident.replica.used_at = time.monotonic()
            self._request_queues.put(resident.replica)
        self._core.schedule()

    # --- health ---

    def _look_after(self, resident: Resident) -> None:
        self.live[resident.job_id] = resident
        resident.health_task = self._core.spawn(
            self._watch(resident), f"resident-{resident.model}"
        )

    async def _watch(self, resident: Resident) -> None:
        assert self._client
        # The boot timeout must not include the wait for GPUs, which may be long for a
        # model on several.
        has_waited = False
        while self.is_waiting(resident):
            has_waited = True
            await asyncio.sleep(_START_CHECK_EVERY_S)
        if has_waited:
            self._on_change()  # others may start beside it now
        async with resident.changing:
            pass  # only now does it say truly whether it sleeps
        spec = self._specs[resident.model]
        try:
            if self.node_of(resident).joined:
                await self._find_way_to(resident)
            await watch_health(
                resident,
                spec,
                self._client,
                lambda: self._on_ready(resident),
                lambda: self._is_reached(resident),
            )
        except (UnhealthyError, OSError) as error:
            resident.fault = str(error)
            if resident.replica:
                self._request_queues.drop(resident.replica)
            await self._requests.cancel(resident.job_id)

    async def _find_way_to(self, resident: Resident) -> None:
        """Let requests reach a server on a machine that has joined, once its agent is
        connected; OSError.
        """
        # A server that cannot be asked must not seem to boot.
        is_reached = self._is_reached(resident)
        while not is_reached:
            await asyncio.sleep(_START_CHECK_EVERY_S)
            is_reached = self._is_reached(resident)
        way = NodePort(self._streams, resident.job_id, resident.port)
        await resident.reach_by(way)

    def _is_reached(self, resident: Resident) -> bool:
        """Whether it can be asked now, if it answers."""
        node = self.node_of(resident)
        return not node.joined or node.state == "online"

    def _on_ready(self, resident: Resident) -> None:
        assert resident.replica
        job = self._core.view.jobs.get(resident.job_id)
        attempt_id = job.attempt_id if job else None
        boot_s = self._core.run_clock.ran_s(attempt_id) if attempt_id else None
        if boot_s is not None and resident.booted_here:
            resident.booted_here = False
            self._timings.booted(resident.model, resident.gpu, boot_s)
        self._timings.is_loaded(resident.model, resident.gpu)
        self.failures[resident.model].reason = ""
        if resident.is_awake:
            self._request_queues.put(resident.replica)
        self._on_change()

    def _disconnect(self, resident: Resident) -> None:
        """Send it no more requests and no more health checks."""
        resident.stop_checks()
        resident.close_port()
        if resident.replica:
            self._request_queues.drop(resident.replica)

    # --- ends ---

    def remove_ended(self) -> None:
        """Remove the servers whose jobs have ended, and count those that failed."""
        jobs = self._core.view.jobs
        ended = [each for each in self.live.values() if each.job_id not in jobs]
        for resident in ended:
            del self.live[resident.job_id]
            self._disconnect(resident)
            resident.gone.set()
            if resident.phase is Phase.UNLOADING and not resident.fault:
                seconds = time.monotonic() - resident.since
                self._timings.took(resident.model, Switch.UNLOAD, seconds, resident.gpu)
            else:
                self._count_failure(resident)

    def _count_failure(self, resident: Resident) -> None:
        cause = resident.fault
        if not cause:
            row = self._core.queries.job(resident.job_id) or {}
            cause = _how_it_ended(row)
        failure = self.failures[resident.model]
        reason = f"{cause}; `gpuyard logs {resident.job_id[-8:]}` shows what it said"
        failure.add(reason, resident)
        log.warning(
            "a model server failed",
            model=resident.model,
            cause=cause,
            times=failure.count,
        )
        has_another = bool(self._request_queues.by_model[resident.model].open)
        if failure.refuses_requests and not has_another:
            self._request_queues.refuse(
                resident.model, f"{resident.model} cannot be loaded: {failure.reason}"
            )


def _how_it_ended(row: Mapping[str, Any]) -> str:
    """How the job of a server ended, by its row, in which the end may be missing."""
    if not row.get("ended_at"):
        return "its server ended"
    reason = row["reason"] or row["state"]
    exit_code = row["exit_code"]
    if exit_code is None:
        return f"its server ended ({reason})"
    return f"its server ended ({reason} {exit_code})"
