"""The provider `mycloud`: each attempt is a machine of its own, which runs one file of
gpuyard's and is gone after it.

It works as it stands, on a toy cloud (`toycloud.py`). Where it says REPLACE, put what
your cloud has instead; what stands without that word should do for most. The numbers
are the steps of README.md.

A provider keeps no truth: gpuyard's ledger does. It may be killed at any line, and two
of it may live for a moment. So everything that it has to know again lies at the cloud:
the attempt's id as the machine's name and tag, and the attempt's folder in storage that
both reach.
"""

import asyncio
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, resolve_gpu_class
from gpuyard.domain.jobconfig import GpuSpec, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.domain.reasons import Reason
from gpuyard.domain.validation import parse_model
from gpuyard.providers.attempt_folder import (
    AttemptFolder,
    StagedInput,
    read_exit,
    read_json,
    runner_order,
)
from gpuyard.providers.base import QueueProvider, refuse_container, with_logs
from gpuyard.providers.shared_call import SharedCall
from gpuyard.storage.untrusted import UntrustedFileError, open_regular

from .toycloud import CloudError, Machine, ToyCloud

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

# What marks a machine as ours, and says whose it is. Nothing without it is ever
# touched.
TAG = "gpuyard-attempt"
FOLLOW_S = 0.3


class MyCloudConfig(BaseModel):
    """What `[providers.mycloud]` may say. A field without a default has to be given:
    its error names it.

    REPLACE: `folder`, by what your cloud needs (region, project, image). Of a secret
    take the name of a file or of a variable, never the secret itself: configuration is
    read by many.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: str  # gpuyard's own folder, given by gpuyard, as is `enabled`
    enabled: bool = True
    folder: str | None = None
    region: str = "here"
    max_pending: int = Field(default=8, ge=1)
    concurrency: int = Field(default=8, ge=1)
    poll_s: float = Field(default=2.0, gt=0)
    timeout_s: float = Field(default=60.0, gt=0)


# --- 3. GPU mapping ---


@dataclass(frozen=True, slots=True)
class MachineType:
    """What one machine of a type has, in the words of gpuyard's catalogue.

    Memory in GB; the price is of an hour.
    """

    gpu_class: GPUClass | None
    gpus: int
    cpus: float
    memory_gb: float
    price_per_hour: Decimal


# REPLACE: the vendor's types, from its price list of PRICES_AS_OF, or from its API if
# that tells.
PRICES_AS_OF = "2026-01-15"
CURRENCY = "USD"
MACHINE_TYPES: Mapping[str, MachineType] = {
    "toy.cpu": MachineType(None, 0, 2, 4, Decimal("0.05")),
    "toy.t4": MachineType(GPUClass.T4, 1, 4, 16, Decimal("0.53")),
    "toy.a100x2": MachineType(GPUClass.A100_80GB, 2, 16, 128, Decimal("7.30")),
}

# --- 5. states and faults ---

# REPLACE: the vendor's states. One that is not here is UNKNOWN, and gpuyard waits for a
# better word. What `stopped` means is in what the job has left: an exit code is read,
# and never guessed.
STATES: Mapping[str, JobStatus] = {
    "waiting": JobStatus.PENDING,
    "running": JobStatus.RUNNING,
}

# REPLACE: the vendor's error codes. The first three of ours mean: it may have been done
# or not, ask again (`gpuyard.providers.base.TRANSIENT`); the job waits. Any other ends
# the attempt at submission, with the message. So an expired credential is NOT_CONNECTED
# (somebody renews it), and a missing permission is not.
ERRORS: Mapping[str, str] = {
    "Throttled": "THROTTLED",
    "Timeout": "TIMEOUT",
    "Unavailable": "NOT_CONNECTED",
    "AuthFailure": "NOT_CONNECTED",
    "AlreadyExists": "ALREADY_EXISTS",
    "OutOfStock": "OUT_OF_STOCK",
    "Forbidden": "FORBIDDEN",
}


class MyCloudProvider(QueueProvider):
    """Machines of mycloud. `config`: see `MyCloudConfig`."""

    PROVIDER_NAME: ClassVar[str] = "mycloud"
    currency = CURRENCY

    # --- 2. interface ---

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Connects to nothing yet: a cloud that is away must not keep gpuyard from
        starting.
        """
        super().__init__(config)
        self.settings = parse_model(MyCloudConfig, dict(config))
        self.concurrency = self.settings.concurrency
        self.poll_s = self.settings.poll_s
        self.max_pending = self.settings.max_pending
        root = Path(
            self.settings.folder or Path(self.settings.home) / "mycloud"
        ).expanduser()
        # REPLACE: the SDK's client, and the storage that both sides reach (a shared
        # folder, a bucket).
        self.cloud = ToyCloud(root / "cloud")
        self._storage = root / "storage"
        # Those who ask at the same time share one question: fifty jobs cost the cloud
        # one call.
        self._machines = SharedCall(self._list)

    async def _call(
        self, work: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer:
        """A call of the SDK in a thread, and its faults in gpuyard's words.

        Nothing else speaks to the cloud.
        """
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await asyncio.to_thread(work, *args, **kwargs)
        except TimeoutError:
            raise ProviderError(
                "mycloud does not answer in time.", self.PROVIDER_NAME, "TIMEOUT"
            ) from None
        except OSError as error:
            raise ProviderError(
                f"mycloud cannot be reached: {error}",
                self.PROVIDER_NAME,
                "NOT_CONNECTED",
            ) from None
        except CloudError as error:
            code = ERRORS.get(error.code, "REFUSED")
            advice = " Renew its credentials." if error.code == "AuthFailure" else ""
            raise ProviderError(
                f"mycloud: {error}.{advice}", self.PROVIDER_NAME, code
            ) from None

    async def _list(self) -> Mapping[str, Machine]:
        return {
            machine.name: machine
            for machine in await self._call(self.cloud.list_machines, TAG)
        }

    async def _find(self, job_id: str) -> Machine:
        machine = (await self._machines()).get(job_id)
        if machine is None:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return machine

    def _folder(self, machine: Machine) -> AttemptFolder:
        return AttemptFolder(self._storage, machine.tags[TAG])

    async def health_check(self) -> dict[str, Any]:
        """Healthy while the cloud answers; the message is for people, in `gpuyard
        providers`.
        """
        try:
            count = len(await self._machines())
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        return {"status": "healthy", "message": f"{count} machines"}

    async def offers(self) -> Sequence[Offer]:
        """What gpuyard chooses from, looked at once a minute. `gpu` is a row of the
        catalogue: its memory is known.

        REPLACE: say in `problem` what is sold out; name a `spot` offer apart; tell
        `wait_s` if the cloud does.
        """
        return [
            Offer(
                f"{self.PROVIDER_NAME}/{name}",
                self.PROVIDER_NAME,
                kind.gpu_class or "",
                kind.gpus,
                cpus=kind.cpus,
                memory_gb=kind.memory_gb,
                region=self.settings.region,
                currency=CURRENCY,
                price_per_hour=kind.price_per_hour,
                price_source=f"price list of {PRICES_AS_OF}",
            )
            for name, kind in MACHINE_TYPES.items()
        ]

    # --- 4. submission ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Write the attempt's folder, then make the machine, unless it exists.

        REPLACE: `create_machine`. The machine's name comes from the attempt, and names
        are unique. So the cloud itself refuses a second machine, whoever asks. Use your
        cloud's client token or unique name for that. If it has neither: hold an
        `asyncio.Lock` for the attempt, look with `find_by_attempt`, then create with
        the tag; and in `find_by_attempt` keep the oldest of two and delete the other.
        """
        # REPLACE: leave it out if your machines run containers.
        refuse_container(order, self.PROVIDER_NAME)
        name = _name(order.attempt_id)
        kind = self._choose(order)
        folder = AttemptFolder(self._storage, order.attempt_id)
        to_run = runner_order(order, StagedInput(order.workdir))
        await self._call(_write, folder.files(to_run, order.stdin))
        # gpuyard's runner starts the command, ends it at its timeout, passes on signals
        # and writes down how it ended. Arguments stay separate words: nothing is pasted
        # into a shell. REPLACE: in a boot script, use shlex.join.
        command = [sys.executable, str(folder.runner), str(folder.path)]
        tags = {TAG: order.attempt_id}
        try:
            await self._call(self.cloud.create_machine, name, kind, tags, command)
        except ProviderError as error:
            if error.error_code == "OUT_OF_STOCK":
                raise InsufficientResourcesError(
                    str(error), self.PROVIDER_NAME, order.gpu_spec
                ) from None
            if error.error_code != "ALREADY_EXISTS":
                raise
        return name

    def _choose(self, order: AttemptOrder) -> str:
        """The type of the chosen offer; without one, the cheapest that will do."""
        offered = order.offer.removeprefix(f"{self.PROVIDER_NAME}/")
        if offered in MACHINE_TYPES:
            return offered
        able = [
            name for name, kind in MACHINE_TYPES.items() if _suits(kind, order.gpu_spec)
        ]
        if not able:
            message = (
                f"{self.PROVIDER_NAME} has no type of machine for"
                f" {order.gpu_spec.model_dump(exclude_none=True)}."
            )
            raise InsufficientResourcesError(
                message, self.PROVIDER_NAME, order.gpu_spec
            )
        return min(able, key=lambda name: MACHINE_TYPES[name].price_per_hour)

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Asked after a crash or a lost reply, before anything is sent again."""
        name = _name(attempt_id)
        return name if name in await self._machines() else None

    # --- 5. status ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """One question for all. What is not known is left out; when the cloud cannot be
        asked, this raises.

        The machines are listed before their folders are read: what one that has stopped
        left is then all there.
        """
        machines = await self._machines()
        known = [machines[job_id] for job_id in job_ids if job_id in machines]
        return await self._call(
            lambda: {machine.name: self._result(machine) for machine in known}
        )

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        return await with_logs(self, await self._status(job_id))

    async def _status(self, job_id: str) -> JobResult:
        machine = await self._find(job_id)
        return await self._call(self._result, machine)

    def _result(self, machine: Machine) -> JobResult:
        """What the cloud and the attempt's folder say together."""
        folder = self._folder(machine)
        end = read_json(_read(folder.exit))
        began = read_json(_read(folder.started))
        if end:
            return replace(read_exit(machine.name, end), created_at=machine.created_at)
        status = STATES.get(machine.state, JobStatus.UNKNOWN)
        if machine.state == "stopped":
            return self._gone(machine, began.get("at"))
        if status is JobStatus.RUNNING and not began:
            status = JobStatus.PENDING  # it boots: the program does not run yet
        return JobResult(
            machine.name,
            status,
            machine.created_at,
            began.get("at"),
            node=str(began.get("host") or ""),
        )

    def _gone(self, machine: Machine, began: float | None) -> JobResult:
        """It has stopped, and the runner has left no word: it was called off before it
        began, or the machine is lost.

        Whoever sees a loss first writes it down, so that the answer stays the same.
        """
        folder = self._folder(machine)
        why: dict[str, Any] = read_json(_read(folder.stop))
        if not why:
            why = {"reason": Reason.NODE_LOST, "at": time.time()}
            _write({folder.stop: json.dumps(why).encode()})
        reason = str(why["reason"])
        message = (
            "the machine is gone, and nobody saw how the job ended"
            if reason == Reason.NODE_LOST
            else reason
        )
        status = JobStatus.CANCELLED if reason == Reason.CANCELLED else JobStatus.FAILED
        return JobResult(
            machine.name,
            status,
            machine.created_at,
            began,
            why["at"],
            reason=reason,
            error_message=message,
        )

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """Write down why, then shut down: the runner reads the reason at TERM.

        With `checkpoint` gpuyard needs the place for another job; this one is resumed
        later.
        """
        machine = await self._find(job_id)
        if (await self._call(self._result, machine)).status.is_over:
            return False
        reason = Reason.PREEMPTED if checkpoint else Reason.CANCELLED
        folder = self._folder(machine)
        told = read_json(await self._call(_read, folder.stop)).get("reason")
        if told is None or (told != Reason.CANCELLED and reason == Reason.CANCELLED):
            stop = {"reason": reason, "checkpoint": checkpoint, "at": time.time()}
            await self._call(_write, {folder.stop: json.dumps(stop).encode()})
        await self._call(self.cloud.shut_down, job_id)
        return True

    async def forget_job(self, job_id: str) -> None:
        """REPLACE: delete the machine and its disk. What is not deleted is paid for."""
        machine = (await self._machines()).get(job_id)
        if machine is not None:
            await self._call(
                shutil.rmtree, self._folder(machine).path, ignore_errors=True
            )
            await self._call(self.cloud.delete_machine, job_id)

    # --- 5. output ---

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See StreamsLogs.

        REPLACE: how the log is read, in parts if logs are large, and FOLLOW_S if
        reading costs.
        """
        log = self._folder(await self._find(job_id)).log
        data = await self._call(_read, log)
        offset = len(data)
        over = False
        if lines is not None:
            data = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
        if data:
            yield data
        while follow:
            fresh = await self._call(_read, log, offset)
            if fresh:
                offset += len(fresh)
                yield fresh
            elif over:
                return
            else:
                await asyncio.sleep(FOLLOW_S)
                # Asked before the last look, so that its last line is not missed.
                over = (await self._status(job_id)).status.is_over

    # --- 6. cost ---

    async def price_per_hour(self, job_id: str) -> Decimal:
        """The price of its type; the base class multiplies it by the seconds it ran.

        REPLACE: override `get_cost_info` if the cloud tells what it has metered, or if
        it bills from the machine's creation to its deletion, as most do.
        """
        machine = await self._find(job_id)
        return MACHINE_TYPES[machine.type].price_per_hour


def _name(attempt_id: str) -> str:
    """The machine of an attempt.

    REPLACE: mind which characters the cloud takes, and how many.
    """
    return f"gpuyard-{attempt_id}"


def _suits(kind: MachineType, spec: GpuSpec) -> bool:
    """True when a machine of the type has all that is asked for."""
    if (
        (spec.vcpus or 0) > kind.cpus
        or (spec.ram_gb or 0) > kind.memory_gb
        or spec.gpu_count > kind.gpus
    ):
        return False
    if spec.gpu_count == 0:
        return True
    wanted = resolve_gpu_class(spec.gpu_type) if spec.gpu_type else None
    memory_gb = GPU_CLASSES[kind.gpu_class].memory_gb if kind.gpu_class else 0
    return (wanted is None or kind.gpu_class in wanted) and (
        spec.memory_gb or 0
    ) <= memory_gb


# --- the attempt's folder. REPLACE: by the storage that you have; a bucket's objects
# are whole or not there at all ---


def _write(files: Mapping[Path, bytes]) -> None:
    """Each there whole or not at all."""
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        draft.write_bytes(data)
        draft.replace(path)


def _read(path: Path, offset: int = 0) -> bytes:
    """What it holds at this moment: one that grows all the while is not chased.

    Empty when it is not there, or when the job has put a link in its place.
    """
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, UntrustedFileError):
        return b""
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(offset)
        return file.read(max(size - offset, 0))
