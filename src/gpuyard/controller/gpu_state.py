"""`gpu_state.json`: what each GPU is doing, in the seed document's form. A view, written whole or not at all.

Keys are the GPUs' indices (with the node's name in front where several nodes have GPUs); each entry has its `uuid`.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.models import GPU_STATES
from gpuyard.controller.resident import Resident
from gpuyard.controller.residents import Residents
from gpuyard.domain.states import GpuState, gpu_state
from gpuyard.domain.units import iso_time
from gpuyard.scheduler.fleet import Phase
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.switching import Move
from gpuyard.scheduler.view import LiveAttempt

_EVERY_S = 1.0
log = structlog.get_logger(__name__)


class GpuStateFile:
    """Writes the file whenever what it says has changed."""

    def __init__(self, core: Core, residents: Residents, path: Path) -> None:
        self._core = core
        self._residents = residents
        self._path = path
        self._written: str | None = None

    async def run(self) -> None:
        """Keep it true for ever, on a yard that has GPUs."""
        while True:
            if self._core.view.devices:
                self.write()
            await asyncio.sleep(_EVERY_S)

    def write(self) -> None:
        """Write it if it has changed; a disk that is full keeps the old one."""
        text = json.dumps(self.document(), indent=1)
        if text == self._written:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(text)
            draft.replace(self._path)
            self._written = text
        except OSError as error:
            log.warning("gpu_state.json cannot be written", error=str(error))

    def document(self) -> dict[str, Any]:
        """What the file says now."""
        view = self._core.view
        devices = [device for device in view.devices.values() if device.node_id]
        several = len({device.node_id for device in devices}) > 1
        residents = {resident.gpu: resident for resident in self._residents.live.values()}
        workers = {uuid: a for a in view.attempts.values() for place in a.placements for uuid in place.gpu_uuids}
        gpus = {
            f"{view.node(d.node_id or '').title}:{d.index}" if several else str(d.index):
            self._entry(d, residents.get(d.uuid), workers.get(d.uuid)) for d in sorted(devices, key=_place)
        }  # fmt: skip
        boots = {model: self._residents.switching.seconds(model, Move.BOOT) for model in self._residents.specs}
        return {"gpus": gpus, "boot_times": {model: round(seconds, 1) for model, seconds in boots.items()}}

    def _entry(self, device: Device, resident: Resident | None, worker: LiveAttempt | None) -> dict[str, Any]:
        of_model = GPU_STATES[resident.now_in] if resident else None
        state = gpu_state(GpuState(device.state), of_model, busy=worker is not None, draining=device.draining)
        entry = {"state": state, "uuid": device.uuid}
        if state is of_model and resident:
            return {**entry, **self._of_resident(resident)}
        if state is GpuState.SCRIPT_BUSY and worker:
            return {**entry, **self._of_script(worker)}
        return entry if state is GpuState.IDLE else {**entry, "reason": device.problem}

    def _of_resident(self, resident: Resident) -> dict[str, Any]:
        began = self._core.clock() - (time.monotonic() - resident.since)
        entry: dict[str, Any] = {"model": resident.model, "port": resident.port}
        if resident.phase is Phase.BOOTING:
            takes_s = self._residents.switching.seconds(resident.model, Move.BOOT)
            return {**entry, "started_boot": _iso(began), "expected_ready": _iso(began + takes_s)}
        done = resident.replica.answered if resident.replica else 0
        return {**entry, "since": _iso(began), "tasks_completed": done}

    def _of_script(self, worker: LiveAttempt) -> dict[str, Any]:
        job = self._core.view.jobs.get(worker.job_id)
        seen: Mapping[str, Any] = self._core.progress.get(worker.job_id, {})
        step, total = seen.get("step"), seen.get("total")
        return {
            "script": job.kind if job else None, "task_id": worker.job_id,
            "since": _iso(worker.started_at or worker.created_at),
            "progress": round(step / total, 4) if step is not None and total else None,
        }  # fmt: skip


def _place(device: Device) -> tuple[str, int, str]:
    return device.node_id or "", device.index, device.uuid


def _iso(at: float) -> str:
    """Whole seconds: an entry is written anew only when something has happened."""
    return iso_time(round(at))
