"""Find out why a job of a study failed: the rank, its last lines, and what to do."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuyard.studies.left_files import open_left, read_left_object, shown
from gpuyard.studies.runtime.server_commands import SERVERS

_FIRST_NODE = "node-0.out"
_LAST_BYTES = 256 << 10
_MOST_LINES = 12
_LONGEST_LINE = 300
# What srun puts before each line of a task: see `slurm_jobs`.
_LABEL = re.compile(r"\s*\d+: ?")
_LABELLED = re.compile(r"\s*(\d+): ?(.*)")
# srun: error: node2: task 3: Exited with exit code 1
_TASK_FAILED = re.compile(r"srun: error: (\S+): tasks? (\d+)[^:]*: (.+)")
_ENDED_BY_OTHERS = re.compile(r"Terminated|Killed$")
_OF_SLURM = re.compile(r"(srun|slurmstepd|sbatch): .*error", re.IGNORECASE)
_ADVICE = (
    (
        r"CUDA out of memory|OutOfMemoryError",
        "lower generation.batch_size or max_new_tokens, or split over more GPUs",
    ),
    (
        r"oom[-_ ]?kill|Out Of Memory",
        'ask for more memory: slurm.sbatch = ["--mem=64G"]',
    ),
    (
        r"No module named|cannot be imported|is not installed",
        "install it for the interpreter slurm.python, or name another one there",
    ),
    (
        r"command not found|No such file or directory|not found in PATH",
        "correct slurm.python, slurm.modules or the path; the nodes must see it",
    ),
    (r"Permission denied", "let the account of the job read and write the files"),
    (
        r"DUE TO TIME LIMIT|time limit",
        "raise slurm.time_limit, or ask for fewer prompts with --limit",
    ),
    (
        r"generic resource|\bgres\b",
        "correct slurm.gres and gpus_per_node; `gpuyard offers` lists the GPUs",
    ),
    (r"[Pp]artition", "correct slurm.partition; `gpuyard offers` lists the partitions"),
    (
        r"node configuration|[Nn]ode count|too many nodes",
        "ask for fewer nodes or GPUs a node; `gpuyard offers` lists the nodes",
    ),
    (r"[Aa]ccount", "correct slurm.account"),
    (
        r"NCCL|Connection (closed|reset|refused)|timed out",
        'look at the other ranks; slurm.nccl_debug = "INFO" tells more',
    ),
)
_NO_ADVICE = "correct the cause, then `gpuyard study resume` tries it again"


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed.

    `rank` and `node` are None and empty where Slurm does not tell which task failed.
    `lines` are the last ones of that rank, or else of the log; `advice` is what to do.
    """

    log: str
    lines: tuple[str, ...]
    advice: str
    rank: int | None = None
    node: str = ""

    @property
    def where(self) -> str:
        """The rank and its node, in words; empty if they are not known."""
        if self.rank is None:
            return ""
        return f"rank {self.rank}" + (f" on {self.node}" if self.node else "")

    @classmethod
    def of(cls, document: object) -> "JobFailure | None":
        """From what a manifest holds of it."""
        if not isinstance(document, dict):
            return None
        found = cast(dict[str, Any], document)
        return cls(
            str(found.get("log") or ""),
            tuple(map(str, found.get("lines") or ())),
            str(found.get("advice") or _NO_ADVICE),
            found.get("rank"),
            str(found.get("node") or ""),
        )


def find_failure(folder: Path, log: Path | None, reason: str) -> JobFailure:
    """Look for the cause in a strategy's folder and the log of its job.

    `reason` is what is known otherwise, such as Slurm's words.
    """
    lines = _last_lines(folder, log) if log else []
    rank, node = _failed_task(lines)
    metrics = list(_errors(folder))
    if rank is None and metrics:
        rank, node, _ = metrics[0]
        log = _log_of_node(folder, log, rank)
        lines = _last_lines(folder, log) if log else []
    told = _lines_of(lines, rank)
    errors = [error for at, _, error in metrics if at == rank]
    advice = _advice([*told, *errors, reason])
    last = tuple(shown(line, _LONGEST_LINE) for line in told[-_MOST_LINES:])
    return JobFailure(str(log or ""), last, advice, rank, shown(node, _LONGEST_LINE))


def _log_of_node(folder: Path, log: Path | None, rank: int) -> Path | None:
    """Return the log of a rank's node, where each node has one of its own.

    That is so without Slurm: see `own_node_jobs`.
    """
    if log is None or log.name != _FIRST_NODE:
        return log
    try:
        config = read_left_object(folder, "exp_config.json")
        processes = int(config["gpus_per_node"])
        if config.get("engine") in SERVERS:
            # One process on each node starts the server's part there.
            processes = 1
        other = log.with_name(_FIRST_NODE.replace("0", str(rank // processes)))
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return log
    return other if other.is_file() else log


def _last_lines(folder: Path, log: Path) -> list[str]:
    top = folder if log.is_relative_to(folder) else log.parent
    try:
        with open_left(top, log.relative_to(top)) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [_as_shown(line) for line in text.split("\n")]
    return [line for line in lines if line]


def _as_shown(line: str) -> str:
    """A line as a terminal would show it in the end, with the label of its rank.

    What stands behind a carriage return is of the same rank, so it cannot pass for a
    line of srun.
    """
    head, *others = line.rstrip().split("\r")
    if not others:
        return head
    label = _LABEL.match(head)
    return f"{label[0] if label else ''}{others[-1]}"


def _failed_task(lines: Iterable[str]) -> tuple[int | None, str]:
    """The first task that failed of itself, and its node.

    When one task fails, srun ends the others and tells of them too.
    """
    found = [match for line in lines if (match := _TASK_FAILED.match(line))]
    own = [match for match in found if not _ENDED_BY_OTHERS.search(match[3])]
    if not found:
        return None, ""
    first = own[0] if own else found[0]
    return int(first[2]), first[1]


def _errors(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Yield rank, host and error of the ranks that report one, the earliest first."""
    found: list[tuple[float, int, str, str]] = []
    for path in folder.glob("metrics/*.json"):
        try:
            report = read_left_object(folder, path.relative_to(folder))
            if report["error"]:
                ended_at = float(report.get("ended_at") or 0)
                host = str(report.get("host") or "")
                found.append((ended_at, int(report["rank"]), host, report["error"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    for _, rank, host, error in sorted(found):
        yield rank, host, str(error)


def _lines_of(lines: Sequence[str], rank: int | None) -> list[str]:
    """The lines of a rank without their labels, then Slurm's own errors.

    All lines if the rank is not known, or has printed nothing.
    """
    labelled = [match for line in lines if (match := _LABELLED.fullmatch(line))]
    own = [match[2] for match in labelled if int(match[1]) == rank]
    if not own:
        return list(lines)
    of_slurm = [line for line in lines if _OF_SLURM.match(line)]
    return own[-_MOST_LINES + 2 :] + of_slurm[:2]


def _advice(told: Iterable[str]) -> str:
    text = "\n".join(told)
    for pattern, advice in _ADVICE:
        if re.search(pattern, text):
            return advice
    return _NO_ADVICE
