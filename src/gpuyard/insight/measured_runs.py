"""What the runs of a program, and of programs like it, say of its next run. Pure.

A program is the same if it is the same file in the same place, or a file with the same
content. What it needs is the same if it also has the same model, optimiser, batch and
length of sequences; where these are not known, the same arguments.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import median

from gpuyard.domain.program_needs import (
    LearnedFactors,
    MeasuredNeeds,
    MeasuredProgram,
    MeasuredTime,
    ProgramNeeds,
)
from gpuyard.domain.reasons import Reason

# A run that did not complete counts if it ran longer than this: by then a training has
# taken the memory that it takes.
_LONG_S = 600.0
# So many of the newest runs of the same program count.
_NEWEST = 20
# Of projects that do not exist for who asks, runs of fewer users would say too much.
_FEWEST_HIDDEN = 3
# What is computed is not wrong by more; a factor beyond is something else.
_LEAST_FACTOR = 0.5
_MOST_FACTOR = 3.0
# Two trainings of the same length; the rest is rounding.
_SAME_WORK = 0.01
_LAUNCHER = re.compile(r"torch\.distributed(\.\w+)?|accelerate(\..+)?|deepspeed(\..+)?")
# Options that change neither memory nor time, and those that change the time only.
_NO_EFFECT = re.compile(
    r"--?(seed|(base_|max_)?lr|learning_rate|weight_decay|momentum|name|run_name|tag"
    r"|project|exp_name|out|out_dir|output|output_dir|save_dir|log_dir|logdir)"
)
_TIME_ONLY = re.compile(
    r"--?((num_|max_|n_)?(train_)?(epochs?|steps|iters|iterations))"
)


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """The program that a command starts: its `place`, which is its path without its
    ending, and its arguments.
    """

    place: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastRun:
    """An attempt that has ended. `gpu_memory_gb` is what each of its GPUs has, and
    `peak_gb` the most that was in use on one; `reason` is None where it completed.
    `is_whole`: it did not go on from a checkpoint. `is_hidden`: its project does not
    exist for who asks.
    """

    job_id: str
    user: str
    project: str | None
    program: StartedProgram | None
    needs: ProgramNeeds | None
    gpu_class: str
    gpus: int
    gpu_memory_gb: float | None
    peak_gb: float | None
    ran_s: float
    reason: str | None
    is_whole: bool = True
    is_hidden: bool = False

    @property
    def has_completed(self) -> bool:
        """Whether its program ended well."""
        return self.reason is None

    @property
    def lacked_memory(self) -> bool:
        """Whether it ended because a GPU was too small."""
        return self.reason == Reason.GPU_OUT_OF_MEMORY

    @property
    def shows_memory(self) -> bool:
        """Whether its peak is what the program needs."""
        has_run = self.has_completed or self.ran_s >= _LONG_S
        return has_run and self.peak_gb is not None and not self.lacked_memory


@dataclass(frozen=True, slots=True)
class Asked:
    """The program that somebody asks about."""

    needs: ProgramNeeds
    program: StartedProgram | None
    user: str
    project: str | None


def started_program(
    command: Sequence[str], workdir: str | None
) -> StartedProgram | None:
    """The Python program that a command starts in a folder; None if it starts none."""
    for at, word in enumerate(command):
        following = command[at + 1] if at + 1 < len(command) else ""
        if word == "-m" and following and not _LAUNCHER.fullmatch(following):
            path = following.replace(".", "/")
            return StartedProgram(_place(path, workdir), tuple(command[at + 2 :]))
        if word.endswith((".py", ".ipynb")):
            return StartedProgram(_place(word, workdir), tuple(command[at + 1 :]))
    return None


def _place(path: str, workdir: str | None) -> str:
    parts: list[str] = []
    for part in PurePosixPath(workdir or "/", path).parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    if parts and parts[-1] == "__main__.py":
        parts = parts[:-1]
    return str(PurePosixPath(*parts).with_suffix("")) if parts else "/"


def measured_needs(runs: Iterable[PastRun], asked: Asked) -> MeasuredNeeds:
    """What these runs, newest first, say of the program that is asked about."""
    known = list(runs)
    own = [run for run in known if _is_own(run, asked) and _is_same(run, asked)]
    return MeasuredNeeds(own=_of_own(own[:_NEWEST], asked), alike=_alike(known, asked))


def _is_own(run: PastRun, asked: Asked) -> bool:
    """Whether it is of the same user, or of the same project."""
    is_colleague = asked.project is not None and run.project == asked.project
    return not run.is_hidden and (run.user == asked.user or is_colleague)


def _is_same(run: PastRun, asked: Asked) -> bool:
    """Whether it ran the same program so that it needs the same memory."""
    if asked.needs.gpus and run.gpus != asked.needs.gpus:
        return False
    if not (_has_same_place(run, asked) or _has_same_content(run, asked)):
        return False
    kind = run.needs.kind if run.needs else None
    if kind is not None and asked.needs.kind is not None:
        return kind == asked.needs.kind
    return _shapes(run, asked, with_time=False)


def _has_same_place(run: PastRun, asked: Asked) -> bool:
    if run.program is None or asked.program is None:
        return False
    return run.program.place == asked.program.place


def _has_same_content(run: PastRun, asked: Asked) -> bool:
    return run.needs is not None and run.needs.digest == asked.needs.digest


def _shapes(run: PastRun, asked: Asked, *, with_time: bool) -> bool:
    """Whether both have the same arguments, but for those without effect."""
    if run.program is None or asked.program is None:
        return False
    return _shape(run.program.arguments, with_time=with_time) == _shape(
        asked.program.arguments, with_time=with_time
    )


def _shape(arguments: Sequence[str], *, with_time: bool) -> list[str]:
    found: list[str] = []
    is_value = False
    for word in arguments:
        (name, has_value, _) = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        is_left_out = _NO_EFFECT.fullmatch(name) or (
            not with_time and _TIME_ONLY.fullmatch(name)
        )
        if is_value and not word.startswith("-"):
            is_value = False
            continue
        is_value = bool(is_left_out) and not has_value
        if not is_left_out:
            found.append(word)
    return found


def _of_own(runs: Sequence[PastRun], asked: Asked) -> MeasuredProgram | None:
    showing = [run for run in runs if run.shows_memory]
    peak = max(showing, key=lambda run: run.peak_gb or 0.0, default=None)
    failed = _failed_since(runs)
    times = list(_times(runs, asked))
    if peak is None and failed is None and not times:
        return None
    has_changed = not any(_has_same_content(run, asked) for run in runs)
    return MeasuredProgram(
        runs=len(showing),
        peak_gb=peak.peak_gb if peak else None,
        job_id=peak.job_id if peak else None,
        failed_on_gb=failed.gpu_memory_gb or failed.peak_gb if failed else None,
        failed_job_id=failed.job_id if failed else None,
        is_changed=has_changed and all(run.needs is not None for run in runs),
        times=times,
    )


def _failed_since(runs: Sequence[PastRun]) -> PastRun | None:
    """The run that lacked memory on the largest GPU, after the last that had enough."""
    found: PastRun | None = None
    for run in runs:
        if run.shows_memory:
            break
        size = run.gpu_memory_gb or run.peak_gb
        if run.lacked_memory and size is not None:
            largest = (found.gpu_memory_gb or found.peak_gb or 0.0) if found else 0.0
            found = run if size > largest else found
    return found


def _times(runs: Sequence[PastRun], asked: Asked) -> Iterator[MeasuredTime]:
    """How long the same training ran, by class of GPU."""
    seconds: dict[str, list[float]] = defaultdict(list)
    newest: dict[str, str] = {}
    for run in runs:
        share = _share_of_work(run, asked)
        if not run.has_completed or not run.is_whole or share is None:
            continue
        seconds[run.gpu_class].append(run.ran_s * share)
        newest.setdefault(run.gpu_class, run.job_id)
    for gpu_class, values in sorted(seconds.items()):
        yield MeasuredTime(
            gpu_class=gpu_class,
            seconds=round(median(values), 3),
            runs=len(values),
            job_id=newest[gpu_class],
        )


def _share_of_work(run: PastRun, asked: Asked) -> float | None:
    """How many times the work of the run the training has; None if that is not
    known.
    """
    work = asked.needs.teraflops
    worked = run.needs.teraflops if run.needs else None
    if work is not None and worked is not None:
        share = work / worked
        return 1.0 if abs(share - 1) <= _SAME_WORK else share
    return 1.0 if _shapes(run, asked, with_time=True) else None


_Measured = list[tuple[PastRun, float]]


def _alike(runs: Sequence[PastRun], asked: Asked) -> LearnedFactors | None:
    """What programs of the same kind have taught. Each user counts once, so that nobody
    decides alone what others are told.
    """
    kind = asked.needs.kind
    memory: _Measured = []
    rates: dict[str, _Measured] = defaultdict(list)
    for run in runs:
        if kind is None or run.needs is None or run.needs.kind != kind:
            continue
        if (factor := _memory_factor(run)) is not None:
            memory.append((run, factor))
        if (rate := _gpu_s_per_teraflop(run)) is not None:
            rates[run.gpu_class].append((run, rate))
    memory = _told(memory, asked)
    speed = {name: _told(values, asked) for name, values in rates.items()}
    counted = {
        run.job_id: run for values in (memory, *speed.values()) for run, _ in values
    }
    if not counted:
        return None
    return LearnedFactors(
        runs=_number(counted.values()),
        memory=round(_median_of_users(memory), 2) if memory else None,
        gpu_s_per_teraflop={
            name: float(f"{_median_of_users(values):.2g}")
            for name, values in speed.items()
            if values
        },
    )


def _told(values: _Measured, asked: Asked) -> _Measured:
    """These values without those of hidden projects, if these are of too few users
    besides the one who asks.
    """
    others = {run.user for run, _ in values if run.is_hidden} - {asked.user}
    if len(others) >= _FEWEST_HIDDEN:
        return values
    return [(run, value) for run, value in values if not run.is_hidden]


def _number(runs: Collection[PastRun]) -> int:
    """How many these are; rounded down where it would tell each run of a hidden
    project.
    """
    number = len(runs)
    if any(run.is_hidden for run in runs):
        number -= number % _FEWEST_HIDDEN
    return number


def _median_of_users(values: _Measured) -> float:
    by_user: dict[str, list[float]] = defaultdict(list)
    for run, value in values:
        by_user[run.user].append(value)
    return median(median(of_user) for of_user in by_user.values())


def _memory_factor(run: PastRun) -> float | None:
    """How many times the computed memory it took; at least that, where it lacked
    some.
    """
    computed = run.needs.memory_gb if run.needs else None
    if computed is None:
        return None
    if run.lacked_memory:
        size = run.gpu_memory_gb or run.peak_gb or 0.0
        return min(size / computed, _MOST_FACTOR) if size > computed else None
    if not run.shows_memory or run.peak_gb is None:
        return None
    return min(max(run.peak_gb / computed, _LEAST_FACTOR), _MOST_FACTOR)


def _gpu_s_per_teraflop(run: PastRun) -> float | None:
    work = run.needs.teraflops if run.needs else None
    if work is None or not run.has_completed or not run.is_whole:
        return None
    return run.ran_s * run.gpus / work
