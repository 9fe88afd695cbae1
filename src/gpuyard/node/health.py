"""Which GPUs may be used, over time. A quarantine survives the agent, and a GPU that
fails repeatedly has to be well for a while before it is used again.

A quarantine for an Xid lasts until the host is booted again or somebody releases the
GPU. One for a fault that the GPU itself reports lasts as long as the GPU reports it.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec.structs import replace

from gpuyard.devices.health import PROGRAM_XIDS, xid_text
from gpuyard.domain import wire
from gpuyard.domain.states import GpuState

# This many failures within WITHIN_S have no consequence. After each further one the GPU
# has to be well for twice as long, up to LONGEST_TRIAL_S.
FORGIVEN = 2
WITHIN_S = 3600.0
FIRST_TRIAL_S = 30.0
LONGEST_TRIAL_S = 600.0
RELEASE = "once that is seen to, `gpuyard gpus --release UUID` lets it work again"
log = structlog.get_logger(__name__)


class GpuHealth:
    """Remembers the faults of a host's GPUs; the file `path` keeps the quarantines."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._quarantined: dict[str, str] = {}
        self._unwatched: dict[str, str] = {}
        self._failures: dict[str, list[float]] = {}
        self._well_since: dict[str, float] = {}
        self._unwell: set[str] = set()
        with suppress(OSError, ValueError):
            kept = json.loads(path.read_text())
            if kept["boot_id"] == boot_id:
                self._quarantined = dict(kept["quarantined"])

    def xid(self, uuid: str, number: int) -> bool:
        """Note that the driver reported this Xid. True when a program caused it, so
        that the GPU is not at fault.
        """
        if number in PROGRAM_XIDS:
            return True
        if uuid not in self._quarantined:
            self._quarantined[uuid] = (
                f"the driver reported {xid_text(number)}; {RELEASE}"
            )
            self._save()
        return False

    def unwatched(self, uuid: str, reason: str | None) -> None:
        """Note that the driver's events for this GPU cannot be received (None: they
        can).
        """
        if reason is None:
            self._unwatched.pop(uuid, None)
        else:
            self._unwatched[uuid] = f"its events cannot be heard: {reason}"

    def release(self, uuids: Collection[str]) -> None:
        """Somebody has repaired or checked these GPUs: forget their faults."""
        for uuid in uuids:
            for memory in (self._quarantined, self._failures, self._well_since):
                memory.pop(uuid, None)
        self._save()

    def judge(self, gpu: wire.GpuStatus, now: float) -> wire.GpuStatus:
        """The GPU with the state that follows from this reading and from earlier
        faults, at `now` (monotonic seconds).
        """
        quarantine = self._quarantined.get(gpu.uuid)
        if quarantine:
            return replace(gpu, state=GpuState.QUARANTINED.value, problem=quarantine)
        unwatched = self._unwatched.get(gpu.uuid)
        if unwatched and gpu.state == GpuState.IDLE:
            gpu = replace(gpu, state=GpuState.OFFLINE.value, problem=unwatched)
        if gpu.state != GpuState.IDLE:
            self._note_failure(gpu.uuid, now)
            return gpu
        self._unwell.discard(gpu.uuid)
        since = self._well_since.setdefault(gpu.uuid, now)
        failures = len(self._failures.get(gpu.uuid, ()))
        trial_s = 0.0
        if failures > FORGIVEN:
            doubled_s = FIRST_TRIAL_S * 2.0 ** (failures - FORGIVEN - 1)
            trial_s = min(doubled_s, LONGEST_TRIAL_S)
        if now - since >= trial_s:
            return gpu
        problem = (
            f"it failed {failures} times within the hour; it gets work again once it"
            f" has been well for {trial_s:g} s"
        )
        return replace(gpu, state=GpuState.COOLING.value, problem=problem)

    def _note_failure(self, uuid: str, now: float) -> None:
        self._well_since.pop(uuid, None)
        if uuid not in self._unwell:
            self._unwell.add(uuid)
            earlier = self._failures.get(uuid, [])
            recent = [at for at in earlier if now - at < WITHIN_S]
            self._failures[uuid] = [*recent, now]

    def _save(self) -> None:
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(
                json.dumps({"boot_id": self._boot_id, "quarantined": self._quarantined})
            )
            draft.replace(self._path)
        except OSError as error:
            log.warning("the quarantine is not kept on disk", error=str(error))
