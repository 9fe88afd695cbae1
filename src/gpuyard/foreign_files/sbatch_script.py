"""A batch script as the standard input of `bash -s`: what Slurm would set, and then the
script itself under its own interpreter.

So the job runs the script as it was when it was submitted, as with `sbatch`, also on
machines that do not have its file.
"""

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import resources

_SET_AT_RUN_TIME = {
    "SLURM_JOB_ID": "${SLURM_JOB_ID:-$GPUYARD_JOB_ID}",
    "SLURM_JOBID": "$SLURM_JOB_ID",
    "SLURM_JOB_NODELIST": "${SLURM_JOB_NODELIST:-${MASTER_ADDR:-127.0.0.1}}",
    "SLURM_NODELIST": "$SLURM_JOB_NODELIST",
    "SLURM_NODEID": "${NODE_RANK:-0}",
    "SLURM_PROCID": "$SLURM_NODEID",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "${SLURMD_NODENAME:-$HOSTNAME}",
}
_OF_A_TASK = {"SLURM_ARRAY_TASK_ID": "$GPUYARD_ARRAY_INDEX"}
_OF_SRUN = frozenset({"SLURM_STEP_NUM_TASKS"})
_VARIABLE = re.compile(r"\bSLURMD?_[A-Z_]+\b")
_COMMAND = re.compile(
    r"(?:^|[;&|(`]|\$\()\s*(sbatch|scancel|squeue|sacct|sinfo|salloc|sbcast|sstat)\b"
)


def as_input(text: str, variables: Mapping[str, str], read_from: str) -> str:
    """What `bash -s -- ARGUMENTS` reads to run the script `text`, with these variables
    of Slurm. The script itself reads the file `read_from`.
    """
    mark = f"END_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    is_task = "SLURM_ARRAY_TASK_COUNT" in variables
    at_run_time = _SET_AT_RUN_TIME | (_OF_A_TASK if is_task else {})
    stand_ins = (
        resources.files("gpuyard.foreign_files").joinpath("stand_ins.bash").read_text()
    )
    return "\n".join(
        [
            stand_ins.rstrip(),
            "export -f srun scontrol",
            *(f'export {name}="{value}"' for name, value in at_run_time.items()),
            *(f"export {name}={shlex.quote(v)}" for name, v in variables.items()),
            f"script=$(mktemp) && cat > \"$script\" << '{mark}' || exit",
            text.rstrip("\n"),
            mark,
            # The file has no name any more when the script begins, so nothing of it is
            # left behind however that ends.
            'exec 9< "$script" && rm "$script" || exit',
            "unset script",
            f'exec {_interpreter(text)} /dev/fd/9 "$@" < {shlex.quote(read_from)}',
            "",
        ]
    )


def _interpreter(text: str) -> str:
    """The words of the first line, as the kernel reads them: at most two."""
    first = text.splitlines()[0].removeprefix("#!").strip()
    return shlex.join(first.split(maxsplit=1))


def notes_of(text: str, variables: Mapping[str, str], label: str) -> Iterator[str]:
    """What of the script itself works only on Slurm, a line each."""
    is_task = "SLURM_ARRAY_TASK_COUNT" in variables
    known = {*variables, *_SET_AT_RUN_TIME, *_OF_SRUN, *(_OF_A_TASK if is_task else ())}
    told: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for name in _VARIABLE.findall(line):
            if name not in known | told:
                told.add(name)
                yield f"{label}, line {number}: gpuyard does not set {name}"
        for name in _COMMAND.findall(line):
            if name not in told:
                told.add(name)
                yield f"{label}, line {number}: {name} is there only on Slurm"
