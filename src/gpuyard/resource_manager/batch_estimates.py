"""How long batches take: of one that is not submitted, and of one that runs."""

from typing import Any

from gpuyard.controller.core import Core
from gpuyard.domain.batches import BatchMode, BatchSpec
from gpuyard.residency.item_assignment import BatchGpu, GpuPlan, plan_batch
from gpuyard.resource_manager.batch import Batch, Item
from gpuyard.resource_manager.batches import Batches
from gpuyard.resource_manager.residents import Residents

# To plan more items than this for a mere look takes too long.
_MAX_PLANNED = 1000
_LEARNED_FROM = 20


class BatchEstimates:
    """Estimates batches by how long their items took before."""

    def __init__(self, core: Core, residents: Residents, batches: Batches) -> None:
        self._core = core
        self._residents = residents
        self._batches = batches

    def mode_of(self, wanted: BatchMode | None, script: str, count: int) -> BatchMode:
        """The mode of a batch of `count` items: `wanted`, if somebody wants one."""
        if wanted:
            return wanted
        batch_settings = self._core.settings.resource_manager.batch_settings
        is_large = count >= batch_settings.auto_exclusive_threshold
        needs_gpus = self._core.scripts[script].gpus > 0
        return BatchMode.EXCLUSIVE if is_large and needs_gpus else BatchMode.SHARED

    def estimate(self, spec: BatchSpec) -> dict[str, Any]:
        """How long a batch would take if it were submitted now, in seconds."""
        name = self._core.scripts.named(spec.script)
        mode = self.mode_of(spec.mode, name, len(spec.items))
        row: dict[str, Any] = {
            "id": "",
            "state": "running",
            "mode": mode.value,
            "reload": None,
            "problem": None,
            "args": {},
        }
        items = [
            Item("", number, item.path, item.entry, item.seconds, item.args)
            for number, item in enumerate(spec.items, 1)
        ]
        script = self._core.scripts[name]
        batch = Batch(row, script, items, pace_ratios=self._learned_pace(name))
        unload_s = 0.0
        if batch.exclusive:
            reload = row["reload"] = dict[str, list[str]]()
            for resident in self._residents.servers.live.values():
                unload_s = max(unload_s, self._residents.unload_s(resident.model))
                for gpu in resident.gpus:
                    reload.setdefault(gpu, []).append(resident.model)
        plans = self._forecast(batch, unload_s)
        return {
            "script": name,
            "mode": mode.value,
            "items": len(items),
            "pace_known": bool(batch.pace_ratios),
            "work_s": sum(map(batch.expected_s, items)),
            **self._plan(plans, unload_s, batch),
        }

    def _learned_pace(self, script: str) -> list[float]:
        """The pace ratios of the newest items of a script (see `Batch`)."""
        rows = self._core.queries.newest_items(script, _LEARNED_FROM)
        items = [Item.of_row(row) for row in rows]
        return Batch({}, self._core.scripts[script], items).pace_ratios

    def _forecast(self, batch: Batch, unload_s: float = 0.0) -> list[GpuPlan]:
        """What each GPU of the batch will do, if all are free `unload_s` later."""
        if batch.script.gpus:
            places = self._batches.items.places(batch)
        else:
            places = [BatchGpu("", 0.0)] * self._batches.gpus.max_workers(batch)
        delayed = [
            BatchGpu(place.gpu, place.free_at + unload_s, place.load_s)
            for place in places
        ]
        durations = [batch.expected_s(item) for item in batch.queued.values()]
        return plan_batch(durations, delayed, batch.script.exit_s)

    def eta_s(self, batch: Batch) -> float | None:
        """In how many seconds the last model is loaded again.

        For a batch with many queued items: roughly, in how many seconds the last item
        is completed.
        """
        if len(batch.queued) <= _MAX_PLANNED:
            return max(
                (plan.model_back_at for plan in self._forecast(batch)), default=None
            )
        if batch.script.gpus:
            workers = len(self._batches.items.places(batch))
        else:
            workers = self._batches.gpus.max_workers(batch)
        if not workers:
            return None
        return sum(map(batch.expected_s, batch.queued.values())) / workers

    def _plan(
        self, plans: list[GpuPlan], unload_s: float, batch: Batch
    ) -> dict[str, Any]:
        used = [plan for plan in plans if plan.items]
        index = {uuid: device.index for uuid, device in self._core.view.devices.items()}
        return {
            "total_s": max((plan.model_back_at for plan in used), default=None),
            "unload_s": unload_s,
            "boot_s": batch.script.boot_s,
            "dry_s": max((plan.items_done_at for plan in used), default=None),
            "plan": [
                {
                    "gpu": index.get(plan.gpu),
                    "uuid": plan.gpu or None,
                    "items": plan.items,
                    "begins_s": plan.starts_at,
                    "dry_s": plan.items_done_at,
                    "over_s": plan.model_back_at,
                    "reload": batch.reload.get(plan.gpu, []),
                }
                for plan in used
            ],
        }
