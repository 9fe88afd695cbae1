"""Writes `gpu_state.json`: what each GPU does, in the form of the seed document. The
file is always complete.

The keys are the indices of the GPUs, with the name of the node before them if several
nodes have GPUs. Each entry has the `uuid`.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpuyard.controller.core import Core
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.states import GpuState
from gpuyard.domain.units import iso_time
from gpuyard.residency.switching import Switch
from gpuyard.resource_manager.gpu_work import GpuWork, Work
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.nodes import Device

_EVERY_S = 1.0
# The more GPUs there are, the more seldom it is written: it takes its share of the time
# and no more.
_EVERY_S_PER_GPU = 0.001
# So many GPUs are looked at before others have their turn.
_GPUS_AT_ONCE = 100
Entry = dict[str, Any]
log = structlog.get_logger(__name__)


class GpuStateFile:
    """Writes the file whenever its content has changed.

    `waiting()` says how many prompts and how many scripts wait.
    """

    def __init__(
        self,
        core: Core,
        residents: Residents,
        work: GpuWork,
        waiting: Callable[[], dict[str, int]],
        path: Path,
    ) -> None:
        self._core = core
        self._residents = residents
        self._work = work
        self._waiting = waiting
        self._path = path
        self._written: bytes | None = None

    async def run(self) -> None:
        """Keep the file up to date for ever, if the instance has or had GPUs."""
        while True:
            devices = self._core.view.devices
            if devices or self._path.exists():
                # While the database is away, the old file stays.
                with suppress(LedgerError):
                    await self._update()
            await asyncio.sleep(_EVERY_S + _EVERY_S_PER_GPU * len(devices))

    async def _update(self) -> None:
        """Write the file, and let others have their turn in between."""
        entries: list[tuple[Device, Entry]] = []
        for found in self._entries():
            entries.append(found)
            if len(entries) % _GPUS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._write(entries)

    def write(self) -> None:
        """Write the file at once, for the last time."""
        self._write(list(self._entries()))

    def _entries(self) -> Iterator[tuple[Device, Entry]]:
        for device, work in self._work.each():
            yield device, _entry(device, work)

    def _write(self, entries: list[tuple[Device, Entry]]) -> None:
        """Write the file if its content has changed; on a full disk the old one
        stays.
        """
        document = msgspec.json.encode(self._document(entries))
        text = msgspec.json.format(document, indent=1)
        if text == self._written:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.write_bytes(text)
            draft.replace(self._path)
            self._written = text
        except OSError as error:
            log.warning("gpu_state.json cannot be written", error=str(error))

    def _document(self, entries: list[tuple[Device, Entry]]) -> dict[str, Any]:
        """The content of the file."""
        entries.sort(key=lambda entry: _order(entry[0]))
        nodes = {device.node_id for device, _ in entries}
        gpus: dict[str, Entry] = {}
        for device, entry in entries:
            key = str(device.index)
            if len(nodes) > 1:
                node = self._core.view.node(device.node_id or "")
                key = f"{node.title}:{key}"
            gpus[key] = entry
        return {
            "gpus": gpus,
            "boot_times": self._boot_times(),
            "queues": self._waiting(),
        }

    def _boot_times(self) -> dict[str, float]:
        """How long everything takes to load: as configured, of models as measured."""
        core = self._core
        times: dict[str, float] = dict(core.settings.resource_manager.boot_times)
        times |= core.scripts.boot_times()
        for model in self._residents.specs:
            boot_s = self._residents.switch_times.seconds(model, Switch.BOOT)
            times[model] = round(boot_s, 1)
        return times


def _order(device: Device) -> tuple[str, int, str]:
    return device.node_id or "", device.index, device.uuid


def _entry(device: Device, work: Work) -> Entry:
    """The entry of a GPU, with the keys of the seed document."""
    entry: Entry = {"state": work["state"], "uuid": device.uuid}
    if device.problem:
        entry["reason"] = device.problem
    if "model" in work:
        entry |= {"model": work["model"], "pid": work["pid"], "port": work["port"]}
        if "expected_at" in work:
            entry["started_boot"] = _whole_seconds(work["since"])
            entry["expected_ready"] = _whole_seconds(work["expected_at"])
        else:
            entry["since"] = _whole_seconds(work["since"])
            entry["tasks_completed"] = work["tasks_completed"]
    elif work["state"] == GpuState.SCRIPT_BUSY:
        for name in ("script", "pid", "task_id", "progress"):
            entry[name] = work.get(name)
        entry["since"] = _whole_seconds(work["since"])
    elif work["state"] == GpuState.BOOTING_SCRIPT:
        for name in ("script", "pid", "task_id"):
            entry[name] = work.get(name)
        entry["started_boot"] = _whole_seconds(work["since"])
        entry["expected_ready"] = _whole_seconds(work["expected_at"])
    return entry


def _whole_seconds(at: float) -> str:
    """The time in ISO 8601. Fractions would change, and the file be written, without
    any news.
    """
    return iso_time(round(at))
