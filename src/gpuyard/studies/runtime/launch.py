"""Which process this is: its rank from the launcher, and its position in the mesh."""

import re
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from .errors import RunError
from .experiment import Experiment


@dataclass(frozen=True)
class LaunchedProcess:
    """One process of `world_size`: number `local_rank` on its host.

    `master` is the host and port where all processes meet.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    master: tuple[str, str]

    def export(self, environment: MutableMapping[str, str]) -> None:
        """Set the environment variables that torch and DeepSpeed read."""
        environment.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_RANK=str(self.local_rank),
            MASTER_ADDR=self.master[0],
            MASTER_PORT=self.master[1],
        )


@dataclass(frozen=True)
class Mesh:
    """The position of one rank in the mesh (dp, pp, tp).

    tp is innermost: under block distribution it stays within a node.
    """

    dp_rank: int
    pp_rank: int
    tp_rank: int
    dp_size: int
    pp_size: int
    tp_size: int

    @property
    def is_first(self) -> bool:
        """Whether its stage embeds."""
        return self.pp_rank == 0

    @property
    def is_last(self) -> bool:
        """Whether its stage chooses tokens."""
        return self.pp_rank == self.pp_size - 1

    @property
    def is_output(self) -> bool:
        """Whether its shard carries the rows of its replica."""
        return self.is_last and self.tp_rank == 0

    def rank_of(self, dp_rank: int, pp_rank: int, tp_rank: int) -> int:
        """The rank at a place."""
        return (dp_rank * self.pp_size + pp_rank) * self.tp_size + tp_rank


def read_launch(environment: Mapping[str, str]) -> LaunchedProcess:
    """Read the rank from torchrun's or DeepSpeed's variables, or else from srun's.

    Without any of them this is a single process. Raises `RunError` if only some are
    set.
    """
    if "RANK" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        count = (
            "SLURM_STEP_NUM_TASKS"
            if "SLURM_STEP_NUM_TASKS" in environment
            else "SLURM_NTASKS"
        )
        names = ("SLURM_PROCID", count, "SLURM_LOCALID")
    else:
        return LaunchedProcess(0, 1, 0, socket.gethostname(), ("127.0.0.1", "29500"))
    try:
        rank = int(environment[names[0]])
        world_size = int(environment[names[1]])
        local_rank = int(environment.get(names[2], "0"))
    except (KeyError, ValueError) as error:
        raise RunError(
            f"the launcher sets {names[0]}, but no sound {names[1]}: {error}"
        ) from error
    return LaunchedProcess(
        rank, world_size, local_rank, socket.gethostname(), _master(environment)
    )


def _master(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the host and port where all processes meet.

    That is the first host of the step, at a port that depends on the job and the step.
    """
    nodes = (
        environment.get("SLURM_STEP_NODELIST")
        or environment.get("SLURM_JOB_NODELIST")
        or "127.0.0.1"
    )
    step = int(environment.get("SLURM_JOB_ID") or 0) * 7 + int(
        environment.get("SLURM_STEP_ID") or 0
    )
    port = environment.get("MASTER_PORT") or str(20000 + step % 10000)
    # srun runs on the first host of a batch job, and says where that is; a host's name
    # may not be known to others.
    there = environment.get("MASTER_ADDR") or environment.get(
        "SLURM_LAUNCH_NODE_IPADDR"
    )
    return there or first_host(nodes), port


def first_host(nodes: str) -> str:
    """The first of Slurm's compact list: `gpu[03-07,9],other` -> `gpu03`."""
    head = re.match(r"([^\[,]*)(?:\[([^\]]*)\])?([^,]*)", nodes)
    if head is None:
        return nodes
    numbers = head.group(2)
    return (
        head.group(1)
        + (re.split(r"[-,]", numbers)[0] if numbers else "")
        + head.group(3)
    )


def _beside_server(experiment: Experiment, launch: LaunchedProcess) -> Mesh:
    if launch.world_size != experiment.num_nodes:
        raise RunError(
            f"{launch.world_size} processes were started, but {experiment.engine} needs"
            f" one on each of {experiment.num_nodes} nodes"
        )
    return Mesh(0, 0, 0, 1, 1, 1)


def configure_parallel_groups(experiment: Experiment, launch: LaunchedProcess) -> Mesh:
    """The place of this rank; vllm may be started as one process, whatever its layout.

    A server is started by one process on each node. Raises `RunError` when more or
    fewer processes run than the layout has.
    """
    if experiment.is_served:
        return _beside_server(experiment, launch)
    if experiment.engine == "vllm" and launch.world_size == 1:
        return Mesh(0, 0, 0, 1, 1, 1)
    if launch.world_size != experiment.world_size:
        raise RunError(
            f"{launch.world_size} processes were started, but {experiment.layout} needs"
            f" {experiment.world_size}"
        )
    rest, tp_rank = divmod(launch.rank, experiment.tp_size)
    dp_rank, pp_rank = divmod(rest, experiment.pp_size)
    return Mesh(
        dp_rank,
        pp_rank,
        tp_rank,
        experiment.dp_size,
        experiment.pp_size,
        experiment.tp_size,
    )
