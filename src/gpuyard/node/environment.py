"""The environment of a job: that of the shell that submitted it or else the agent's
own, the variables of the spec, and those that gpuyard sets.
"""

import math
import os
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from gpuyard.config.accounts import Account
from gpuyard.config.paths import Home
from gpuyard.config.private_environment import is_private
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import DEFAULT_ENVIRONMENT
from gpuyard.storage.contents import stores_of_node
from gpuyard.storage.environments import Environments

# gpuyard's own settings.
_OURS = "GPUYARD_"
# What a job of another account inherits: its language and its time, nothing of root's.
_COMMON = ("LANG", "LC_", "TZ")
_PATH = "/usr/local/bin:/usr/bin:/bin"


def job_environment(
    start: wire.StartAttempt,
    node: str,
    resume_from: Path | None,
    workspace: Path | None = None,
    withheld: tuple[str, ...] = (),
    account: Account | None = None,
    carried: dict[str, str] | None = None,
) -> dict[str, str]:
    """The whole environment of an attempt's process. It begins with the environment
    that the job carries (`carried_environment`), or else with the agent's own, without
    keys and without variables whose names begin with one of `withheld`. With an
    `account`, the job gets what a login would set in place of the agent's variables.

    The GPUs are named by UUID here because a running program cannot choose them once
    CUDA is initialised. A job that asked for no GPU sees none.
    """
    gpus = ",".join(start.gpu_uuids)
    own = {
        "CUDA_VISIBLE_DEVICES": gpus,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROCR_VISIBLE_DEVICES": gpus,  # for AMD
        "GPUYARD_JOB_ID": start.job_id,
        "GPUYARD_ATTEMPT_ID": start.attempt_id,
        "GPUYARD_ATTEMPT": str(start.token),
        "GPUYARD_NODE": node,
    }
    if resume_from:
        own["GPUYARD_RESUME_FROM"] = str(resume_from)
    if workspace:
        own["GPUYARD_WORKSPACE"] = str(workspace)
    given = start.environment | start.secrets
    if carried is None:
        base = _of_account(account) if account else _inherited(withheld)
        return base | _defaults(start) | given | own
    login = {"PATH": _PATH, **account.environment()} if account else {}
    return _defaults(start) | carried | login | given | own


@lru_cache(maxsize=16)
def carried_environment(
    home: Path, digest: str, withheld: tuple[str, ...]
) -> dict[str, str]:
    """What a job of a home's agent may have of an environment; cached, because many
    jobs carry the same. EnvironmentMissingError.
    """
    environments = Environments(stores_of_node(home))
    return _without_ours(environments.get(digest).variables, withheld)


def _of_account(account: Account) -> dict[str, str]:
    common = {
        name: value for name, value in os.environ.items() if name.startswith(_COMMON)
    }
    return common | {"PATH": _PATH} | account.environment()


@cache
def _inherited(withheld: tuple[str, ...]) -> dict[str, str]:
    """What jobs inherit from the agent; cached, because each attempt needs it."""
    return _without_ours(os.environ, withheld)


def _without_ours(
    environment: Mapping[str, str], withheld: tuple[str, ...]
) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith((_OURS, *withheld)) and not is_private(name)
    }


def _defaults(start: wire.StartAttempt) -> dict[str, str]:
    """Useful values that the job may replace: unbuffered output in lines that are long
    enough for many metrics, and no more threads than the job has cores.
    """
    values = dict(DEFAULT_ENVIRONMENT)
    if start.cpus is not None:
        values["OMP_NUM_THREADS"] = str(max(math.floor(start.cpus), 1))
    return values


def job_command(
    start: wire.StartAttempt,
    resume_from: Path | None,
    home: Path,
    workers_socket: Path | None = None,
    *,
    is_joined: bool = False,
) -> tuple[str, ...]:
    """The command. If there is a checkpoint to resume from, the resume arguments are
    appended. `workers_socket`: where a script's worker finds the server if it may not
    enter the `home`; on a machine that has joined (`is_joined`) it finds the agent.
    """
    if start.command[0] == wire.SCRIPT:
        worker = (sys.executable, "-m", "gpuyard.node.worker")
        if is_joined:
            agent = workers_socket or Home(home).worker_socket
            return (*worker, "--agent", str(agent))
        if workers_socket:
            return (*worker, "--socket", str(workers_socket))
        return (*worker, "--home", str(home))
    if not resume_from:
        return tuple(start.command)
    path = str(resume_from)
    resume_args = [word.replace("{path}", path) for word in start.resume_args]
    return (*start.command, *resume_args)
