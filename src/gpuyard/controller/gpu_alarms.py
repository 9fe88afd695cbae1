"""What nodes tell of their GPUs: warns before one is too hot, while its memory is
nearly full, and when its hardware slows it down.

An alarm ends when the figure is clearly better again, so a figure that swings around
its limit is told once. The ledger has the alarms that stand, so a server that starts
again does not repeat them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn_jobs
from gpuyard.domain import wire
from gpuyard.domain.events import EventKind
from gpuyard.domain.states import GpuState
from gpuyard.domain.units import format_duration

# A GPU that has become so much better may be warned of again.
_COOLER_C = 5.0
_EMPTIER_PERCENT = 5.0
_NOTE = "gpu_alarms"


class Alarm(StrEnum):
    """What is wrong with a GPU. In events, so a name is never changed."""

    TEMPERATURE = "temperature"
    MEMORY = "memory"
    POWER = "power"


# The MIG instances of a GPU share these; each has memory of its own.
_OF_WHOLE_GPU = frozenset({Alarm.TEMPERATURE, Alarm.POWER})


@dataclass(slots=True)
class _Slowed:
    """Whether the GPU was slowed down at the newest reading, and since when that has
    been so (monotonic seconds).
    """

    now: bool
    since: float


class GpuAlarms:
    """The alarms of all GPUs, by the newest readings.

    `models_on(uuid)`: the jobs of the models that share the GPU. Only one of them books
    it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.settings.gpus
        self._readings: dict[str, wire.GpuStatus] = {}
        self._raised: dict[str, set[Alarm]] = {}
        self._slowed: dict[str, _Slowed] = {}
        self.models_on: Callable[[str], Iterable[str]] = lambda _: ()

    def restore(self) -> None:
        """Read which alarms stand, of the GPUs that are on a node."""
        noted: dict[str, list[str]] = self._core.queries.note(_NOTE)
        self._raised = {
            uuid: {alarm for alarm in Alarm if alarm in names}
            for uuid, names in noted.items()
            if uuid in self._core.view.devices
        }

    def seen(self, node_id: str, gpus: Sequence[wire.GpuStatus]) -> None:
        """A node has read its GPUs: tell what has become wrong."""
        read = [gpu for gpu in gpus if gpu.state != GpuState.OFFLINE]
        node = self._core.view.nodes.get(node_id)
        here = {gpu.uuid for gpu in gpus} | set(node.devices if node else ())
        # The figures of those that could not be read are old.
        self.forget(here - {gpu.uuid for gpu in read})
        noted = dict(self._raised)
        # MIG instances have the index of their GPU.
        for _, instances in groupby(sorted(read, key=_index), key=_index):
            self._judge_together(node_id, list(instances))
        if self._raised != noted:
            # In one commit with the events.
            note = {uuid: sorted(raised) for uuid, raised in self._raised.items()}
            self._core.writer.set_note(_NOTE, note)

    def _judge_together(
        self, node_id: str, instances: Sequence[wire.GpuStatus]
    ) -> None:
        """Tell what has become wrong with a GPU, or with the instances that it is
        divided into: once for all of them what concerns the whole GPU.
        """
        raised = [self._raised.get(gpu.uuid, set[Alarm]()) for gpu in instances]
        of_whole = set[Alarm]().union(*raised) & _OF_WHOLE_GPU
        new: dict[Alarm, list[wire.GpuStatus]] = {}
        for gpu, own in zip(instances, raised, strict=True):
            self._readings[gpu.uuid] = gpu
            before = own | of_whole
            after = self._judge(gpu, before)
            if after:
                self._raised[gpu.uuid] = after
            else:
                self._raised.pop(gpu.uuid, None)
            for alarm in after - before:
                new.setdefault(alarm, []).append(gpu)
        for alarm, found in sorted(new.items()):
            if alarm in _OF_WHOLE_GPU:
                self._tell(node_id, found, alarm)
                continue
            for gpu in found:
                self._tell(node_id, [gpu], alarm)

    def forget(self, uuids: Iterable[str]) -> None:
        """These GPUs, or their node, have left: how they are is no longer known."""
        for uuid in uuids:
            self._readings.pop(uuid, None)
            self._slowed.pop(uuid, None)

    def of(self, uuid: str) -> list[str]:
        """What is wrong with the GPU now, in a few words each."""
        gpu = self._readings.get(uuid)
        if gpu is None:
            return []
        words = {
            Alarm.TEMPERATURE: f"{gpu.temperature_c} °C hot",
            Alarm.MEMORY: f"its memory is {_used_percent(gpu) or 100:.0f}% full",
            Alarm.POWER: f"slowed down by {_slowed_by(gpu)}",
        }
        raised = self._raised.get(uuid, set())
        return [words[alarm] for alarm in Alarm if alarm in raised]

    def _judge(self, gpu: wire.GpuStatus, raised: set[Alarm]) -> set[Alarm]:
        """The alarms of the GPU by this reading; `raised` are those of the one
        before.
        """
        settings = self._settings
        found: set[Alarm] = set()
        limit_c = settings.warn_temperature_c
        if Alarm.TEMPERATURE in raised:
            limit_c -= _COOLER_C
        if settings.warn_temperature_c and _reaches(gpu.temperature_c, limit_c):
            found.add(Alarm.TEMPERATURE)
        limit_percent = settings.warn_memory_percent
        if Alarm.MEMORY in raised:
            limit_percent -= _EMPTIER_PERCENT
        used_percent = _used_percent(gpu)
        if used_percent is None and Alarm.MEMORY in raised:
            used_percent = 100.0  # nothing is free: it was reported before
        if settings.warn_memory_percent and _reaches(used_percent, limit_percent):
            found.add(Alarm.MEMORY)
        if settings.warn_power_s and self._is_slow(gpu, Alarm.POWER in raised):
            found.add(Alarm.POWER)
        return found

    def _is_slow(self, gpu: wire.GpuStatus, was_slow: bool) -> bool:
        """Whether the GPU has been slowed down for long. Its power limit counts only if
        the settings say so: GPUs of data centres are always there in training.
        """
        now = time.monotonic()
        slowed = self._slowed.get(gpu.uuid)
        is_limited = gpu.power_limited and self._settings.warn_power_limit
        is_slow = gpu.hardware_slowed or is_limited
        if slowed is None or slowed.now != is_slow:
            slowed = _Slowed(is_slow, now)
            self._slowed[gpu.uuid] = slowed
        is_steady = now - slowed.since >= self._settings.warn_power_s
        return slowed.now if is_steady else was_slow

    def _tell(
        self, node_id: str, instances: Sequence[wire.GpuStatus], alarm: Alarm
    ) -> None:
        gpu = instances[0]
        name = f"GPU {gpu.index}"
        info: dict[str, Any] = {
            "gpu": gpu.uuid,
            "node": node_id,
            "about": alarm.value,
            "temperature_c": gpu.temperature_c,
            "memory_percent": _rounded(_used_percent(gpu)),
            "problem": f"{name} {self._text(gpu, alarm)}",
        }
        jobs = sorted(
            {job for gpu in instances for job in self._jobs_on(node_id, gpu.uuid)}
        )
        warning = f"its {name} {self._text(gpu, alarm)}"
        warn_jobs(self._core, jobs, warning, EventKind.GPU_WARNING, info)

    def _text(self, gpu: wire.GpuStatus, alarm: Alarm) -> str:
        """What has become wrong. It names the limit and not the figure, so that a job
        is not warned of the same again.
        """
        settings = self._settings
        slow = format_duration(settings.warn_power_s)
        words: Mapping[Alarm, str] = {
            Alarm.TEMPERATURE: (
                f"has become {settings.warn_temperature_c:g} °C hot: hotter still, it"
                " slows down and gets no new work; look at its fans and its air"
            ),
            Alarm.MEMORY: (
                f"has its memory {settings.warn_memory_percent:g}% full: a program that"
                " asks it for more fails"
            ),
            Alarm.POWER: (
                f"has been slowed down by {_slowed_by(gpu)} for {slow}: programs on it"
                " take longer; `nvidia-smi -q -d PERFORMANCE,POWER` shows why"
            ),
        }
        return words[alarm]

    def _jobs_on(self, node_id: str, uuid: str) -> Iterator[str]:
        for attempt in self._core.view.attempts_on(node_id):
            if any(uuid in place.booked_gpus for place in attempt.placements):
                yield attempt.job_id
        yield from self.models_on(uuid)


def _slowed_by(gpu: wire.GpuStatus) -> str:
    """What slows the GPU down now, or did a moment ago."""
    if gpu.hardware_slowed:
        return "its hardware"
    return "its power limit" if gpu.power_limited else "its power or its heat"


def _index(gpu: wire.GpuStatus) -> int:
    return gpu.index


def _reaches(figure: float | None, limit: float) -> bool:
    return figure is not None and figure >= limit


def _used_percent(gpu: wire.GpuStatus) -> float | None:
    """How much of its memory is used; None if that is not known."""
    # 0: the source does not report it.
    if not gpu.memory_mb or not gpu.free_mb:
        return None
    return 100.0 * (1 - gpu.free_mb / gpu.memory_mb)


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)
