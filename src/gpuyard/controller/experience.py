"""Experience: what the residents teach. How long models take to move, and at what time of day they are asked for.

It is kept in the ledger, so a server that starts knows it.
"""

import time
from collections.abc import Mapping

from gpuyard.controller.core import Core
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.models import ModelSpec
from gpuyard.scheduler.habits import Habit, Habits
from gpuyard.scheduler.switching import Move, Switching, Timing


class Experience:
    """`switching`: how long moves take. `warm`: the nodes on which each model was loaded before, by this server."""

    def __init__(self, core: Core, specs: Mapping[str, ModelSpec]) -> None:
        self._core, self._specs = core, specs
        self.switching = Switching(_expected(specs, core.settings.resource_manager.boot_times))
        self.warm: dict[str, set[str]] = {model: set() for model in specs}
        self._habits = Habits()
        self._dismissed: dict[str, float] = {}  # by model, until when it is not expected (UTC): it was sent away

    def recall(self) -> None:
        """Read what earlier servers have learned."""
        for row in self._core.queries.timings():
            self.switching.took(row["name"], Move(row["move"]), row["seconds"], row["gpu_class"])
        for row in self._core.queries.habits():
            self._habits.recall(Habit(row["model"], row["slot"], row["day"], row["share"]))

    def booted(self, model: str, gpu: str, seconds: float) -> None:
        """A server was started and has answered."""
        home = self._home(gpu)
        self.took(model, Move.REBOOT if home in self.warm[model] else Move.BOOT, seconds, gpu)

    def is_loaded(self, model: str, gpu: str) -> None:
        """It answers there."""
        if home := self._home(gpu):
            self.warm[model].add(home)

    def took(self, model: str, move: Move, seconds: float, gpu: str) -> None:
        """The model has moved."""
        timing = self.switching.took(model, move, seconds, self.kind(gpu))
        self._write(EventKind.MODEL_TIMED, Table.TIMINGS, *_row(timing, self._core.clock()))

    def asked(self, model: str) -> None:
        """Somebody asks for it."""
        if habit := self._habits.asked(model, self._core.clock()):
            values = {"model": model, "slot": habit.slot, "day": habit.day, "share": habit.share}
            self._write(EventKind.MODEL_ASKED, Table.HABITS, f"{model}/{habit.slot}", values)

    def expected(self) -> dict[str, tuple[float, float]]:
        """From when until when each model is next expected, where it is (monotonic seconds)."""
        utc = self._core.clock()
        ahead = time.monotonic() - utc
        there = [model for model in self._specs if self._dismissed.get(model, 0.0) <= utc]
        found = {model: self._habits.expected(model, utc) for model in there}
        return {model: (times[0] + ahead, times[1] + ahead) for model, times in found.items() if times}

    def dismiss(self, model: str) -> None:
        """Somebody unloads it: it is not expected again for as long as it is just now."""
        times = self._habits.expected(model, self._core.clock())
        self._dismissed[model] = times[1] if times else 0.0

    def kind(self, gpu: str) -> str:
        """The class of a GPU, for what is learned about it; its name where it is of none."""
        device = self._core.view.devices.get(gpu)
        return str(device.gpu_class or device.name) if device else ""

    def _home(self, gpu: str) -> str | None:
        device = self._core.view.devices.get(gpu)
        return device.node_id if device else None

    def _write(self, kind: EventKind, table: Table, key: str, values: Mapping[str, object]) -> None:
        self._core.emit([Event(kind, self._core.clock(), (Change(table, key, values),), None, values)])


def _row(timing: Timing, now: float) -> tuple[str, Mapping[str, object]]:
    key = f"{timing.name}/{timing.move}/{timing.kind}/{timing.place}"
    return key, {"name": timing.name, "move": timing.move.value, "gpu_class": timing.kind,
                 "seconds": timing.seconds, "at": now}  # fmt: skip


def _expected(specs: Mapping[str, ModelSpec], boot_times: Mapping[str, float]) -> dict[tuple[str, Move], float]:
    """What the settings say of times, until they are measured."""
    times: dict[tuple[str, Move], float] = {}
    for model, spec in specs.items():
        times[model, Move.BOOT] = boot_times.get(model, spec.boot_s)
        times[model, Move.WAKE] = spec.wake_s
        times[model, Move.UNLOAD] = spec.unload_s
    return times
