"""A batch script of Slurm as one of our jobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpuyard.domain.arrays import array_range
from gpuyard.domain.errors import InvalidInputError
from gpuyard.foreign_files import sbatch_values as values
from gpuyard.foreign_files.sbatch_conditions import dependencies, exported
from gpuyard.foreign_files.sbatch_lines import SbatchOption, read_options
from gpuyard.foreign_files.sbatch_options import ONLY_ON_SLURM, REFUSED, UNUSED
from gpuyard.foreign_files.sbatch_script import as_input, notes_of
from gpuyard.foreign_files.translation import Translation, pruned, refused

_T = TypeVar("_T")
_MB_PER_GB = 1024


def translate(
    text: str,
    label: str,
    arguments: Sequence[str],
    folder: Path,
    shell: Mapping[str, str],
) -> Translation:
    """The job that `sbatch` would make of the script `text` in `folder`.

    `label` names the script in errors, `shell` are the variables here.
    InvalidInputError.
    """
    (options, notes) = read_options(text, label)
    given = _Given(options)
    notes += _notes_of_options(options)
    size = _size_of(given)
    name = given.text("job-name") or Path(label).name
    where = folder / given.text("chdir")
    variables = {**_variables(given, size), "SLURM_JOB_NAME": name}
    variables["SLURM_SUBMIT_DIR"] = str(folder)
    script = as_input(text, variables, given.text("input") or "/dev/null")
    notes += notes_of(text, variables, label)
    if size.nodes > 1:
        notes.append(_several_nodes(label, size.nodes))
    body = {
        "name": name,
        "command": ["bash", "-s", "--", *arguments],
        "stdin": script,
        "workdir": str(where),
        "resources": size.resources,
        "array": given.text("array"),
        "held": True if "hold" in given else None,
        "labels": {"comment": given.text("comment")} if "comment" in given else None,
        "timeout_s": given.read("time", values.time_limit),
        "checkpoint": _checkpoint(given),
        "provider_options": _only_on_slurm(given),
        **(given.read("dependency", dependencies) or {}),
        **(given.read("export", lambda text: exported(text, shell)) or {}),
    }
    return Translation(pruned(body), notes)


class _Given:
    """The options of a script by name; of one that stands there twice the last, as with
    `sbatch`.
    """

    def __init__(self, options: Sequence[SbatchOption]) -> None:
        self._options = {option.name: option for option in options}

    def __contains__(self, name: str) -> bool:
        return name in self._options

    def place(self, *names: str) -> str:
        """Where the first of these options stands that is given."""
        return next(
            self._options[name].place for name in names if name in self._options
        )

    def text(self, name: str) -> str:
        """Its value, or an empty text."""
        return self._options[name].value if name in self else ""

    def read(self, name: str, reader: Callable[[str], _T]) -> _T | None:
        """What `reader` makes of its value; InvalidInputError, with its line."""
        if name not in self:
            return None
        option = self._options[name]
        try:
            return reader(option.value)
        except ValueError as error:
            remedy = "write what gpuyard can do, or remove it"
            raise refused(option.place, str(error), remedy) from None


@dataclass(frozen=True, slots=True)
class _Size:
    """What the job needs, per node."""

    nodes: int
    tasks: int
    cpus: int | None
    gpus: int | None
    resources: dict[str, Any]


def _size_of(given: _Given) -> _Size:
    nodes = given.read("nodes", values.nodes) or 1
    tasks = _tasks(given, nodes)
    (kind, gpus) = _gpus(given, nodes, tasks)
    cpus = _cpus(given, tasks, gpus)
    resources = pruned(
        {
            "nodes": nodes if nodes > 1 else None,
            "cpus": cpus,
            "memory_gb": _memory(given, cpus or 1, gpus or 0),
            "gpus": None
            if gpus is None
            else pruned({"count": gpus, "gpu_class": kind}),
        }
    )
    return _Size(nodes, tasks, cpus, gpus, resources)


def _tasks(given: _Given, nodes: int) -> int:
    """Tasks of each node."""
    per_node = given.read("ntasks-per-node", values.count)
    total = given.read("ntasks", values.count)
    if per_node is not None or total is None:
        return per_node or 1
    return _share(given.place("ntasks"), total, nodes)


def _share(place: str, total: int, nodes: int) -> int:
    if total % nodes:
        fault = f"is {total}, and {nodes} nodes cannot have equal shares of that"
        raise refused(place, fault, "all nodes of a job are alike in gpuyard")
    return total // nodes


def _gpus(given: _Given, nodes: int, tasks: int) -> tuple[str | None, int | None]:
    """The class and the number of the GPUs of each node; None if nothing is said."""
    found: dict[str, tuple[str | None, int]] = {}
    for name in ("gres", "gpus-per-node", "gpus", "gpus-per-task"):
        reader = values.gres if name == "gres" else values.gpus
        said = given.read(name, reader)
        if said is None:
            continue
        (kind, number) = said
        if name == "gpus":
            number = _share(given.place(name), number, nodes)
        found[name] = (kind, number * tasks if name == "gpus-per-task" else number)
    counts = {number for _, number in found.values()}
    if len(counts) > 1:
        fault = f"means another number of GPUs than --{next(iter(found))}"
        raise refused(given.place(*reversed(found)), fault, "give one of them")
    kinds = [kind for kind, _ in found.values() if kind]
    return kinds[0] if kinds else None, counts.pop() if counts else None


def _cpus(given: _Given, tasks: int, gpus: int | None) -> int | None:
    """Cores of each node; None if nothing is said."""
    per_gpu = given.read("cpus-per-gpu", values.count)
    if per_gpu is not None:
        return per_gpu * max(gpus or 0, 1)
    per_task = given.read("cpus-per-task", values.count)
    return None if per_task is None and tasks == 1 else tasks * (per_task or 1)


def _memory(given: _Given, cpus: int, gpus: int) -> float | None:
    """Gigabytes of each node."""
    if "mem" in given:
        return given.read("mem", values.memory_gb)
    per_cpu = given.read("mem-per-cpu", values.memory_gb)
    if per_cpu is not None:
        return per_cpu * cpus
    per_gpu = given.read("mem-per-gpu", values.memory_gb)
    return None if per_gpu is None else per_gpu * max(gpus, 1)


def _checkpoint(given: _Given) -> dict[str, Any] | None:
    said = given.read("signal", values.signal)
    return None if said is None else {"signal": said[0], "grace_s": said[1]}


def _only_on_slurm(given: _Given) -> dict[str, str]:
    return {
        ours: given.text(name) for name, ours in ONLY_ON_SLURM.items() if name in given
    }


def _variables(given: _Given, size: _Size) -> dict[str, str]:
    """What Slurm would set and is known before the start."""
    total = size.nodes * size.tasks
    memory = size.resources.get("memory_gb")
    known: dict[str, Any] = {
        "SLURM_NNODES": size.nodes,
        "SLURM_JOB_NUM_NODES": size.nodes,
        "SLURM_NTASKS": total,
        "SLURM_NPROCS": total,
        "SLURM_NTASKS_PER_NODE": size.tasks,
        "SLURM_TASKS_PER_NODE": size.tasks,
        "SLURM_CPUS_PER_TASK": given.read("cpus-per-task", values.count),
        "SLURM_CPUS_ON_NODE": size.cpus,
        "SLURM_JOB_CPUS_PER_NODE": size.cpus,
        "SLURM_GPUS_ON_NODE": size.gpus,
        "SLURM_GPUS": None if size.gpus is None else size.gpus * size.nodes,
        "SLURM_GPUS_PER_NODE": size.gpus,
        "SLURM_MEM_PER_NODE": memory and round(memory * _MB_PER_GB),
        **_array_variables(given),
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def _array_variables(given: _Given) -> dict[str, int]:
    if "array" not in given:
        return {}
    try:
        indices = array_range(given.text("array")).indices
    except InvalidInputError as error:
        fault = error.faults[0]
        raise refused(given.place("array"), fault.fault, fault.remedy) from None
    return {
        "SLURM_ARRAY_TASK_COUNT": len(indices),
        "SLURM_ARRAY_TASK_MIN": min(indices),
        "SLURM_ARRAY_TASK_MAX": max(indices),
    }


def _notes_of_options(options: Sequence[SbatchOption]) -> list[str]:
    """What of the options is not used; InvalidInputError for one that gpuyard must
    refuse.
    """
    notes: list[str] = []
    for option in options:
        if option.name in REFUSED:
            fault = "is something that gpuyard cannot do"
            raise refused(option.place, fault, REFUSED[option.name])
        if option.name in ONLY_ON_SLURM:
            notes.append(f"{option.place} counts only if the job runs on Slurm")
        elif option.name in UNUSED:
            notes.append(f"{option.place} is not used: {UNUSED[option.name]}")
    return notes


def _several_nodes(label: str, nodes: int) -> str:
    return (
        f"{label}: the script runs on each of its {nodes} nodes, srun starts the tasks"
        " of its own node, and SLURM_JOB_NODELIST names the first node only"
    )
