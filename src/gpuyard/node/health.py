"""Which GPUs may be used, over time: quarantine outlives the agent, and one that comes and goes is not trusted at once.

A quarantine for an Xid lasts until the host is booted anew or somebody releases the GPU; one for what the GPU itself
reports lasts for as long as it reports it.
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

# So many falls within so long are forgiven at once; after each further one the GPU has to be well for longer.
FORGIVEN, WITHIN_S = 2, 3600.0
FIRST_TRIAL_S, LONGEST_TRIAL_S = 30.0, 600.0
RELEASE = "once that is seen to, `gpuyard gpus --release UUID` lets it work again"
log = structlog.get_logger(__name__)


class Health:
    """The memory of a host's GPUs' troubles; `path` keeps the quarantines."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._quarantined: dict[str, str] = {}
        self._unwatched: dict[str, str] = {}
        self._falls: dict[str, list[float]] = {}
        self._well_since: dict[str, float] = {}
        self._ill: set[str] = set()
        with suppress(OSError, ValueError):
            kept = json.loads(path.read_text())
            if kept["boot_id"] == boot_id:
                self._quarantined = dict(kept["quarantined"])

    def xid(self, uuid: str, number: int) -> bool:
        """The driver reported this Xid; True when it is one that a program causes, which does the GPU no harm."""
        if number in PROGRAM_XIDS:
            return True
        if uuid not in self._quarantined:
            self._quarantined[uuid] = f"the driver reported {xid_text(number)}; {RELEASE}"
            self._keep()
        return False

    def unwatched(self, uuid: str, reason: str | None) -> None:
        """The driver's events of this GPU cannot be heard (None: can be again)."""
        if reason is None:
            self._unwatched.pop(uuid, None)
        else:
            self._unwatched[uuid] = f"its events cannot be heard: {reason}"

    def release(self, uuids: Collection[str]) -> None:
        """Somebody has seen to these GPUs: what is remembered against them is forgotten."""
        for uuid in uuids:
            for memory in (self._quarantined, self._falls, self._well_since):
                memory.pop(uuid, None)
        self._keep()

    def judge(self, gpu: wire.Gpu, now: float) -> wire.Gpu:
        """The GPU as it may be used at `now` (monotonic seconds), by this reading and by what happened before."""
        if reason := self._quarantined.get(gpu.uuid):
            return replace(gpu, state=GpuState.QUARANTINED.value, problem=reason)
        if reason := self._unwatched.get(gpu.uuid) if gpu.state == GpuState.IDLE else None:
            gpu = replace(gpu, state=GpuState.OFFLINE.value, problem=reason)
        if gpu.state != GpuState.IDLE:
            self._fell(gpu.uuid, now)
            return gpu
        self._ill.discard(gpu.uuid)
        since = self._well_since.setdefault(gpu.uuid, now)
        falls = len(self._falls.get(gpu.uuid, ()))
        trial_s = min(FIRST_TRIAL_S * 2.0 ** (falls - FORGIVEN - 1), LONGEST_TRIAL_S) if falls > FORGIVEN else 0.0
        if now - since >= trial_s:
            return gpu
        problem = f"it failed {falls} times within the hour; it gets work again once it has been well for {trial_s:g} s"
        return replace(gpu, state=GpuState.COOLING.value, problem=problem)

    def _fell(self, uuid: str, now: float) -> None:
        self._well_since.pop(uuid, None)
        if uuid not in self._ill:
            self._ill.add(uuid)
            self._falls[uuid] = [at for at in self._falls.get(uuid, []) if now - at < WITHIN_S] + [now]

    def _keep(self) -> None:
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(json.dumps({"boot_id": self._boot_id, "quarantined": self._quarantined}))
            draft.replace(self._path)
        except OSError as error:
            log.warning("the quarantine is not kept on disk", error=str(error))
