"""What is wrong with a run, by the points of its curves: a loss that is no number or
rises, a GPU that waits, memory that grows.
"""

import re
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median

from gpuyard.insight.event_files import PREFIX
from gpuyard.insight.wandb_files import PREFIX as WANDB_PREFIX

# How long a GPU does nothing, and how long processors and GPUs are compared, in
# seconds.
WINDOW_S = 300.0
# A GPU that is busier than this does something.
IDLE = 0.05
# A GPU that is less busy than this waits for something.
STARVED = 0.5
# A job that uses this part of its cores uses all of them.
ALL_CORES = 0.9
# Memory is compared over this many windows. To grow, it must grow in each, and in all
# of them together by this part of the job's memory.
MEMORY_WINDOWS = 6
GROWTH = 0.05
# The medians of so many points of a loss are compared.
LOSS_POINTS = 20
# A loss rises when it is so many times its lowest, twice in a row.
RISE = 2.0
# Losses that should fall: not those of GANs and of reinforcement learning.
_LOSS_NAME = (
    r"(?:(?:train|training|val|valid|validation|eval|test|lm|total)[ _/.-])*loss"
)
_LOSS = re.compile(_LOSS_NAME)
# `loss nan`, `loss: inf`, `{'loss': nan, …`
_NOT_FINITE = re.compile(
    rf"(?<![\w/])({_LOSS_NAME})['\"]?\s{{0,4}}[=: ]\s{{0,4}}['\"]?([-+]?(?:nan|inf))\b"
)


class Topic(StrEnum):
    """What a finding is about. Part of the public stream."""

    LOSS_NOT_FINITE = "loss_not_finite"
    LOSS_RISES = "loss_rises"
    GPU_IDLE = "gpu_idle"
    GPU_STARVED = "gpu_starved"
    MEMORY_GROWS = "memory_grows"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that its owner wants to know. `title` is the same each time, `detail`
    has the figures and what to do.
    """

    topic: Topic
    title: str
    detail: str

    def __str__(self) -> str:
        return f"{self.title}: {self.detail}"


class RunHealth:
    """Watches one attempt. Each topic is found once.

    `cpus`: its cores. `memory_mb`: its memory, or 0 if it has no limit. `gpus`: how
    many GPUs it has on its node.
    """

    def __init__(self, cpus: float, memory_mb: float, gpus: int) -> None:
        self._gpus = gpus
        self._found: set[Topic] = set()
        self._idle = _IdleGpus()
        self._supply = _Supply(cpus)
        self._memory = _MemoryTrend(memory_mb)
        self._losses: dict[str, _Loss] = {}

    def see(
        self, name: str, step: int | None, value: float, at: float
    ) -> Finding | None:
        """Take the next point of the curve `name`, read at `at` (UTC seconds)."""
        finding = self._look(name, step, value, at)
        return finding if finding and self._is_new(finding.topic) else None

    def see_not_finite(self, words: str) -> Finding | None:
        """The program printed a loss that is no number: "loss is nan at step 120"."""
        if not self._is_new(Topic.LOSS_NOT_FINITE):
            return None
        return Finding(
            Topic.LOSS_NOT_FINITE,
            "its loss is no number",
            f"{words}. Lower the learning rate, clip gradients, or use bf16 instead of"
            " fp16; an older checkpoint may still be good",
        )

    def _is_new(self, topic: Topic) -> bool:
        is_new = topic not in self._found
        self._found.add(topic)
        return is_new

    def _look(
        self, name: str, step: int | None, value: float, at: float
    ) -> Finding | None:
        if name == "system/memory_mb":
            return self._memory.see(value, at)
        if name == "system/cpu_cores":
            return self._supply.see_cores(value, at) if self._gpus else None
        if name.startswith("system/gpu") and name.endswith("_utilization"):
            gpu = name.removeprefix("system/gpu").removesuffix("_utilization")
            self._supply.see_gpu(value)
            return self._idle.see(gpu, value, at)
        if is_loss(name):
            return self._losses.setdefault(name, _Loss(name)).see(step, value)
        return None


def is_loss(name: str) -> bool:
    """Whether a metric of this name should fall."""
    tag = name.lower().removeprefix(PREFIX).removeprefix(WANDB_PREFIX)
    return _LOSS.fullmatch(tag) is not None


def not_finite_loss(line: str) -> str | None:
    """The loss in this line that is no number, as "loss is nan"; else None."""
    lowered = line.lower()
    # A quick check of every line of every log.
    if "loss" not in lowered or not ("nan" in lowered or "inf" in lowered):
        return None
    match = _NOT_FINITE.search(lowered)
    return f"{match[1]} is {match[2]}" if match else None


class _IdleGpus:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def see(self, gpu: str, utilization: float, at: float) -> Finding | None:
        if utilization > IDLE:
            self._since.pop(gpu, None)
            return None
        since = self._since.setdefault(gpu, at)
        if at - since < WINDOW_S:
            return None
        return Finding(
            Topic.GPU_IDLE,
            "its GPU is idle",
            f"GPU {gpu} has done nothing for {WINDOW_S / 60:.0f} minutes. Prepare data"
            " in a job without GPUs, or ask for fewer GPUs",
        )


class _Supply:
    """Whether the processors keep the GPUs waiting."""

    def __init__(self, cpus: float) -> None:
        self._cpus = cpus
        self._began: float | None = None
        self._cores: list[float] = []
        self._busy: list[float] = []

    def see_gpu(self, utilization: float) -> None:
        self._busy.append(utilization)

    def see_cores(self, cores: float, at: float) -> Finding | None:
        self._cores.append(cores)
        if self._began is None:
            self._began = at
        if at - self._began < WINDOW_S:
            return None
        finding = self._compare()
        self._began = at
        self._cores.clear()
        self._busy.clear()
        return finding

    def _compare(self) -> Finding | None:
        if not self._busy:
            return None
        busy = fmean(self._busy)
        cores = fmean(self._cores)
        if not IDLE < busy < STARVED or cores < ALL_CORES * self._cpus:
            return None
        return Finding(
            Topic.GPU_STARVED,
            "its GPU waits for data",
            f"the GPU is busy {busy:.0%} of the time, while the program uses all its"
            f" cores ({cores:.1f} of {self._cpus:g}). Ask for more cores (--cpus) and"
            " use more workers in the data loader, or prepare the data beforehand",
        )


class _MemoryTrend:
    def __init__(self, limit_mb: float) -> None:
        self._limit_mb = limit_mb
        self._began: float | None = None
        self._values: list[float] = []
        self._lowest: deque[float] = deque(maxlen=MEMORY_WINDOWS + 1)

    def see(self, value_mb: float, at: float) -> Finding | None:
        if not self._limit_mb:
            return None
        self._values.append(value_mb)
        if self._began is None:
            self._began = at
        if at - self._began < WINDOW_S:
            return None
        # The lowest of a window does not rise where memory only comes and goes.
        self._lowest.append(min(self._values))
        self._values.clear()
        self._began = at
        return self._compare()

    def _compare(self) -> Finding | None:
        lows = list(self._lowest)
        if len(lows) <= MEMORY_WINDOWS:
            return None
        growth_mb = lows[-1] - lows[0]
        grows = all(later > earlier for earlier, later in pairwise(lows))
        if not grows or growth_mb < GROWTH * self._limit_mb:
            return None
        minutes = MEMORY_WINDOWS * WINDOW_S / 60
        per_minute_mb = growth_mb / minutes
        left_h = max(self._limit_mb - lows[-1], 0) / per_minute_mb / 60
        limit_gb = self._limit_mb / 1000
        return Finding(
            Topic.MEMORY_GROWS,
            "its memory grows steadily",
            f"by {per_minute_mb:.0f} MB a minute for {minutes:.0f} minutes. In"
            f" {left_h:.1f} h it reaches its {limit_gb:.1f} GB. Look for lists that"
            " keep losses or outputs (use .item() or .detach()), or ask for more"
            " (--memory)",
        )


class _Loss:
    def __init__(self, name: str) -> None:
        self._name = name
        self._values: list[float] = []
        self._step: int | None = None
        self._lowest: float | None = None
        self._lowest_step: int | None = None
        self._rises = 0

    def see(self, step: int | None, value: float) -> Finding | None:
        self._values.append(value)
        self._step = step
        if len(self._values) < LOSS_POINTS:
            return None
        now = median(self._values)
        self._values.clear()
        lowest = self._lowest
        if lowest is None or now < lowest:
            self._lowest = now
            self._lowest_step = step
            self._rises = 0
            return None
        # Of a loss that may be negative, twice as much says nothing.
        is_high = lowest > 0 and now >= RISE * lowest
        self._rises = self._rises + 1 if is_high else 0
        if self._rises < 2:
            return None
        return Finding(
            Topic.LOSS_RISES,
            "its loss rises",
            f"{self._name} is {now:.4g}{_at(step)}, and was {lowest:.4g}"
            f"{_at(self._lowest_step)}. Lower the learning rate, or go on from a"
            " checkpoint of that time",
        )


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"
