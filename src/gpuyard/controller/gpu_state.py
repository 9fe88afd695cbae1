"""`gpu_state.json`: what each GPU is doing, in the seed document's form. A view, written whole or not at all.

Keys are the GPUs' indices (with the node's name in front where several nodes have GPUs); each entry has its `uuid`.
"""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.gpu_work import GpuWork, Work
from gpuyard.controller.residents import Residents
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.states import GpuState
from gpuyard.domain.units import iso_time
from gpuyard.scheduler.nodes import Device
from gpuyard.scheduler.switching import Move

_EVERY_S = 1.0
log = structlog.get_logger(__name__)


class GpuStateFile:
    """Writes the file whenever what it says has changed."""

    def __init__(self, core: Core, residents: Residents, work: GpuWork, path: Path) -> None:
        self._core = core
        self._residents = residents
        self._work = work
        self._path = path
        self._written: str | None = None

    async def run(self) -> None:
        """Keep it true for ever, on a yard that has GPUs."""
        while True:
            if self._core.view.devices:
                with suppress(LedgerError):  # a database that is away keeps the old one
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
        work = self._work.all()
        gpus = {
            f"{view.node(d.node_id or '').title}:{d.index}" if several else str(d.index): _entry(d, work[d.uuid])
            for d in sorted(devices, key=_place)
        }
        boots = {model: self._residents.switching.seconds(model, Move.BOOT) for model in self._residents.specs}
        return {"gpus": gpus, "boot_times": {model: round(seconds, 1) for model, seconds in boots.items()}}


def _entry(device: Device, work: Work) -> dict[str, Any]:
    """A GPU in the document's words."""
    entry = {"state": work["state"], "uuid": device.uuid, **({"reason": device.problem} if device.problem else {})}
    if "model" in work:
        entry |= {"model": work["model"], "pid": work["pid"], "port": work["port"]}
        if "expected_at" in work:
            return {**entry, "started_boot": _iso(work["since"]), "expected_ready": _iso(work["expected_at"])}
        return {**entry, "since": _iso(work["since"]), "tasks_completed": work["tasks_completed"]}
    if work["state"] == GpuState.SCRIPT_BUSY:
        named = {name: work.get(name) for name in ("script", "pid", "task_id", "progress")}
        return {**entry, **named, "since": _iso(work["since"])}
    return entry


def _place(device: Device) -> tuple[str, int, str]:
    return device.node_id or "", device.index, device.uuid


def _iso(at: float) -> str:
    """Whole seconds: an entry is written anew only when something has happened."""
    return iso_time(round(at))
