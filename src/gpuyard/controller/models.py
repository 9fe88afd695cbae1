"""What people and programs ask of models: which there are, and to load, unload or pin one."""

import time
from collections import Counter
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.controller.resident import Resident
from gpuyard.controller.residents import Residents
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import GpuState
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.fleet import Phase
from gpuyard.scheduler.residency import place_model, team_for
from gpuyard.scheduler.switching import Move

GPU_STATES = {
    Phase.BOOTING: GpuState.BOOTING_LLM,
    Phase.READY: GpuState.LLM_READY,
    Phase.BUSY: GpuState.LLM_BUSY,
    Phase.UNLOADING: GpuState.UNLOADING,
    Phase.ASLEEP: GpuState.ASLEEP,
}
# The most active of a model's replicas says where the model stands.
_MOST_ACTIVE = (Phase.BUSY, Phase.READY, Phase.BOOTING, Phase.UNLOADING, Phase.ASLEEP)


class Models:
    """The models of the settings, as their users handle them."""

    def __init__(self, core: Core, residents: Residents) -> None:
        self._core = core
        self._residents = residents

    def why_not(self, model: str) -> str | None:
        """Why a request for the model need not wait; None when it may."""
        failure = self._residents.failures[model]
        if failure.told and failure.until > time.monotonic():
            return f"{model} cannot be loaded: {failure.reason}"
        devices = [device for device in self._core.view.devices.values() if device.node_id]
        spec, largest = self._residents.specs[model], max((device.memory_gb for device in devices), default=0.0)
        if not any(node.online for node in self._core.view.nodes.values()):
            return None
        if spec.memory_gb > largest:
            there = f"the largest here has {format_gb(largest)}" if devices else "there is none here"
            return f"{model} needs a GPU with {format_gb(spec.memory_gb)}; {there}"
        together = Counter(device.node_id for device in devices if device.memory_gb >= spec.memory_gb)
        if spec.gpus > (most := max(together.values())):
            return f"{model} needs {spec.gpus} GPUs with {format_gb(spec.memory_gb)} on one machine; the most is {most}"
        return None

    def _check(self, model: str) -> None:
        if model not in self._residents.specs:
            known = ", ".join(self._residents.specs) or "none; add [models.NAME] to gpuyard.toml"
            raise NotFoundError(f"There is no model {model!r}.", f"Configured are: {known}.")

    async def load(self, model: str) -> None:
        """Load the model now, where a GPU is free; RefusedError says who is idle on one that is not."""
        self._check(model)
        if reason := self.why_not(model):
            raise RefusedError(f"{reason}.", "Look at `gpuyard gpus` and `gpuyard models`.")
        fleet = self._residents.fleet(time.monotonic())
        if not fleet.serving(model):
            if gpus := place_model(fleet, model):
                self._residents.load(model, tuple(gpu.id for gpu in gpus))
            elif idle := [r for gpu in team_for(fleet, model) for r in fleet.holders(gpu) if r.phase is Phase.READY]:
                said = " and ".join(sorted({f"{r.model} is idle on GPU {r.gpu.id}" for r in idle}))
                raise RefusedError(f"No place is free for {model}.", f"{said}: unload that first.")
            else:
                raise RefusedError(f"No place is free for {model}.", "Requests for it stand in line until one is.")
        self._core.schedule()
        await self._core.committed()

    async def unload(self, model: str) -> None:
        """Unload every replica of the model once it has answered what it is at; it is pinned no more."""
        self._check(model)
        await self.pin(model, pinned=False)
        self._residents.experience.dismiss(model)
        for resident in self._residents.live.values():
            if resident.model == model:
                resident.leave(for_good=True)
        self._core.schedule()
        await self._core.committed()

    async def pin(self, model: str, *, pinned: bool) -> None:
        """Keep the model loaded whatever comes, or (`pinned` false) let the policy decide again."""
        self._check(model)
        core, there = self._core, self._residents.pinned
        if pinned != (model in there):
            change, info = Change(Table.MODELS, model, {"pinned": pinned}), {"model": model, "pinned": pinned}
            core.emit([Event(EventKind.MODEL_CHANGED, core.clock(), (change,), None, info)])
            (there.add if pinned else there.discard)(model)
            core.schedule()
        await core.committed()

    def listing(self) -> list[dict[str, Any]]:
        """Every model with its replicas, for people and programs."""
        return [self._listed(model) for model in sorted(self._residents.specs)]

    def _listed(self, model: str) -> dict[str, Any]:
        residents = self._residents
        spec, line, failure = residents.specs[model], residents.lines.lines[model], residents.failures[model]
        there = [r for r in residents.live.values() if r.model == model]
        state = next((phase.value for phase in _MOST_ACTIVE if any(r.now_in is phase for r in there)), "absent")
        failing = failure.until > time.monotonic()
        return {
            "name": model, "engine": spec.engine.value, "memory_gb": spec.memory_gb, "gpus": spec.gpus,
            "state": "failing" if failing and not there else state, "pinned": model in residents.pinned,
            "waiting": len(line.waiting), "answered": line.answered,
            "boot_s": residents.switching.seconds(model, Move.BOOT),
            "boot_p90_s": residents.switching.seconds(model, Move.BOOT, quantile=0.9),
            "replicas": [_replica(r) for r in there],
            "problem": failure.reason or self.why_not(model),
        }  # fmt: skip


def _replica(resident: Resident) -> dict[str, Any]:
    now, replica = time.monotonic(), resident.replica
    return {
        "gpu": resident.gpu, "gpus": list(resident.gpus), "job_id": resident.job_id, "state": resident.now_in.value,
        "port": resident.port, "for_s": now - resident.since, "answered": replica.answered if replica else 0,
        "idle_s": now - replica.used_at if replica and not replica.busy else None,
    }  # fmt: skip
