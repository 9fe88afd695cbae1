"""Learned timings: how long models take to load and unload, and at what time of day
they are requested.

They are in the ledger, so that a server that starts knows them.
"""

import time
from collections.abc import Mapping

from gpuyard.controller.core import Core
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.models import BOOT_TIMES, ModelSpec
from gpuyard.residency.demand_forecast import DemandForecast, ModelDemand
from gpuyard.residency.switching import Switch, SwitchTimes


class LearnedTimings:
    """What was learned about models.

    `switch_times`: how long loading, waking and unloading take. `warm`: by model, the
    nodes on which this server has loaded it before.
    """

    def __init__(self, core: Core, specs: Mapping[str, ModelSpec]) -> None:
        self._core = core
        self._specs = specs
        self.switch_times = SwitchTimes(
            _configured_times(specs, core.settings.resource_manager.boot_times)
        )
        self.warm: dict[str, set[str]] = {model: set() for model in specs}
        self._forecast = DemandForecast()
        # By model, until when (UTC seconds) no demand is expected: it was unloaded by a
        # person.
        self._no_demand_until: dict[str, float] = {}

    def restore(self) -> None:
        """Read what earlier servers have learned."""
        for row in self._core.queries.timings():
            self.switch_times.note(
                row["name"], Switch(row["move"]), row["seconds"], row["gpu_class"]
            )
        for row in self._core.queries.demand_shares():
            self._forecast.restore(
                ModelDemand(row["model"], row["slot"], row["day"], row["share"])
            )

    def booted(self, model: str, gpu: str, seconds: float) -> None:
        """Learn how long a server took from its start to its first answer."""
        was_loaded_before = self._node_of(gpu) in self.warm[model]
        move = Switch.REBOOT if was_loaded_before else Switch.BOOT
        self.took(model, move, seconds, gpu)

    def is_loaded(self, model: str, gpu: str) -> None:
        """Note that the model is loaded on the node of this GPU."""
        node_id = self._node_of(gpu)
        if node_id:
            self.warm[model].add(node_id)

    def took(self, model: str, move: Switch, seconds: float, gpu: str) -> None:
        """Learn how long a move of the model took."""
        timing = self.switch_times.note(model, move, seconds, self.kind(gpu))
        key = f"{timing.name}/{timing.move}/{timing.gpu_class}/{timing.slot}"
        values = {
            "name": timing.name,
            "move": timing.move.value,
            "gpu_class": timing.gpu_class,
            "seconds": timing.seconds,
            "at": self._core.clock(),
        }
        self._write(EventKind.MODEL_TIMED, Table.TIMINGS, key, values)

    def asked(self, model: str) -> None:
        """Learn that the model is requested at this time of day."""
        demand = self._forecast.note_request(model, self._core.clock())
        if demand:
            values = {
                "model": model,
                "slot": demand.slot,
                "day": demand.day,
                "share": demand.share,
            }
            key = f"{model}/{demand.slot}"
            self._write(EventKind.MODEL_ASKED, Table.DEMAND_SHARES, key, values)

    def expected(self) -> dict[str, tuple[float, float]]:
        """The next time for which each model is expected to be requested, from and to
        (monotonic seconds).
        """
        now = self._core.clock()
        to_monotonic = time.monotonic() - now
        expected: dict[str, tuple[float, float]] = {}
        for model in self._specs:
            if self._no_demand_until.get(model, 0.0) > now:
                continue
            times = self._forecast.next_demand(model, now)
            if times:
                begin, end = times
                expected[model] = (begin + to_monotonic, end + to_monotonic)
        return expected

    def dismiss(self, model: str) -> None:
        """A person unloads the model: expect no demand until the end of the time for
        which it is expected now.
        """
        times = self._forecast.next_demand(model, self._core.clock())
        self._no_demand_until[model] = times[1] if times else 0.0

    def kind(self, gpu: str) -> str:
        """The class of a GPU, by which timings are learned; its name if it has no
        class.
        """
        device = self._core.view.devices.get(gpu)
        return str(device.gpu_class or device.name) if device else ""

    def _node_of(self, gpu: str) -> str | None:
        device = self._core.view.devices.get(gpu)
        return device.node_id if device else None

    def _write(
        self, kind: EventKind, table: Table, key: str, values: Mapping[str, object]
    ) -> None:
        change = Change(table, key, values)
        self._core.emit([Event(kind, self._core.clock(), (change,), None, values)])


def _configured_times(
    specs: Mapping[str, ModelSpec], boot_times: Mapping[str, float]
) -> dict[tuple[str, Switch], float]:
    """The times of the settings, which count until times are measured."""
    times: dict[tuple[str, Switch], float] = {}
    for model, spec in specs.items():
        own_s = spec.boot_s
        if "boot_s" not in spec.model_fields_set:
            own_s = BOOT_TIMES.get(model, own_s)
        times[model, Switch.BOOT] = boot_times.get(model, own_s)
        times[model, Switch.WAKE] = spec.wake_s
        times[model, Switch.UNLOAD] = spec.unload_s
    return times
