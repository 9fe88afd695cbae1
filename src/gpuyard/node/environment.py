"""The environment a job is given: the agent's, the spec's, and what gpuyard sets itself."""

import math
import os
import sys
from functools import cache
from pathlib import Path

from gpuyard.domain import wire

# Our own settings, among them keys of providers, and the token for slurmrestd.
_OURS = ("GPUYARD_", "SLURM_JWT")


def job_environment(
    start: wire.Start, node: str, resume_from: Path | None, workspace: Path | None = None,
    withheld: tuple[str, ...] = (),
) -> dict[str, str]:  # fmt: skip
    """The whole environment of an attempt's process. What begins with one of `withheld` is not inherited.

    GPUs are named by UUID, in the child's environment, because inside a program it is too late once CUDA is up;
    a job that asked for none sees none.
    """
    own = {
        "CUDA_VISIBLE_DEVICES": ",".join(start.gpu_uuids),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROCR_VISIBLE_DEVICES": ",".join(start.gpu_uuids),  # the same for AMD's
        "GPUYARD_JOB_ID": start.job_id,
        "GPUYARD_ATTEMPT_ID": start.attempt_id,
        "GPUYARD_ATTEMPT": str(start.token),
        "GPUYARD_NODE": node,
    }
    if resume_from:
        own["GPUYARD_RESUME_FROM"] = str(resume_from)
    if workspace:
        own["GPUYARD_WORKSPACE"] = str(workspace)
    return _inherited(withheld) | _defaults(start) | start.environment | own


@cache
def _inherited(withheld: tuple[str, ...]) -> dict[str, str]:
    """What the agent itself was given: read once, because each attempt is given it."""
    return {name: value for name, value in os.environ.items() if not name.startswith((*_OURS, *withheld))}


def _defaults(start: wire.Start) -> dict[str, str]:
    """What helps unless the job says otherwise: output at once, and no more threads than the job has cores."""
    values = {"PYTHONUNBUFFERED": "1"}
    if start.cpus is not None:
        values["OMP_NUM_THREADS"] = str(max(math.floor(start.cpus), 1))
    return values


def job_command(start: wire.Start, resume_from: Path | None, home: Path) -> tuple[str, ...]:
    """The command, with the resume arguments appended when there is a checkpoint to resume from."""
    if start.command[0] == wire.ASK:
        return (sys.executable, "-m", "gpuyard.node.ask", "--home", str(home), *start.command[1:])
    if start.command[0] == wire.SCRIPT:
        return (sys.executable, "-m", "gpuyard.node.worker", "--home", str(home))
    extra = [word.replace("{path}", str(resume_from)) for word in start.resume_args] if resume_from else []
    return (*start.command, *extra)
