"""Write and submit the jobs of a study to gpuyard's own nodes, without Slurm.

gpuyard gives a job its GPUs, all or none, on as many nodes as it wants, and runs the
script on each of them.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.studies.manifest import ManifestEntry
from gpuyard.studies.runtime.server_commands import SERVERS
from gpuyard.studies.slurm_job_manager import SlurmJobManager
from gpuyard.studies.slurm_jobs import SlurmConfig, SlurmJobFactory
from gpuyard.studies.strategies import ParallelismStrategy

if TYPE_CHECKING:
    from gpuyard.domain.jobs import Job

_LOG = "node-0.out"
# Stand for what only a shell on the node knows.
_NODE = "__NODE__"
_HEAD = "__HEAD__"
_PORT = "__PORT__"
_KNOWN_THERE = {
    _NODE: '"${NODE_RANK:-0}"',
    _HEAD: '"${MASTER_ADDR:-127.0.0.1}"',
    _PORT: '"${MASTER_PORT:-29500}"',
}


class OwnNodeJobFactory(SlurmJobFactory):
    """Writes the folders of a run's jobs, with scripts for own nodes."""

    script_name = "job.sh"

    def render_script(self, config: SlurmConfig, strategy: ParallelismStrategy) -> str:
        """The text of `job.sh`, which each node of a job runs."""
        exports = [
            f"export {name}={shlex.quote(value)}"
            for name, value in config.environment.items()
        ]
        modules = [f"module load {shlex.quote(name)}" for name in config.modules]
        words = [*self._container(), *self._start(strategy), *self._program(config)]
        launch = shlex.join(words)
        for name, value in _KNOWN_THERE.items():
            launch = launch.replace(name, value)
        log = shlex.quote(str(config.folder / "logs" / "node-"))
        return "\n".join(
            [
                "#!/bin/bash",
                "set -eo pipefail",
                *modules,
                *exports,
                *_process_variables(self._launcher(strategy), strategy),
                f'{launch} 2>&1 | tee {log}"${{NODE_RANK:-0}}.out"',
                "",
            ]
        )

    def _launcher(self, strategy: ParallelismStrategy) -> str:
        """Return what starts the processes of a node: torchrun, or the engine."""
        engine = strategy.engine_of(self.study)
        return engine if engine == "vllm" or engine in SERVERS else "torchrun"

    def _start(self, strategy: ParallelismStrategy) -> list[str]:
        python = self.study.slurm.python
        if self._launcher(strategy) != "torchrun":
            return [python]
        meeting = ["--standalone"]
        if strategy.num_nodes > 1:
            meeting = [
                f"--nnodes={strategy.num_nodes}",
                f"--node-rank={_NODE}",
                f"--master-addr={_HEAD}",
                f"--master-port={_PORT}",
            ]
        return [
            python,
            "-m",
            "torch.distributed.run",
            *meeting,
            f"--nproc-per-node={strategy.gpus_per_node}",
        ]


def _process_variables(launcher: str, strategy: ParallelismStrategy) -> list[str]:
    """Return the lines by which the only process of a node knows those of others."""
    if launcher == "torchrun":
        return []
    known = {
        "RANK": _KNOWN_THERE[_NODE],
        "WORLD_SIZE": str(strategy.num_nodes),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": _KNOWN_THERE[_HEAD],
        "MASTER_PORT": _KNOWN_THERE[_PORT],
    }
    return [f"export {name}={value}" for name, value in known.items()]


class OwnNodeJobManager(SlurmJobManager):
    """Submits jobs to own nodes through a client and waits for them."""

    def _work(
        self, entry: ManifestEntry, experiment: Mapping[str, Any], time_limit_s: float
    ) -> dict[str, Any]:
        script = Path(entry.output_root) / OwnNodeJobFactory.script_name
        needs_gpus = experiment["device"] != "cpu"
        gpus = {"count": experiment["gpus_per_node"] if needs_gpus else 0}
        return {
            "command": ["bash", str(script)],
            "provider": OWN_NODES,
            "resources": {"nodes": experiment["num_nodes"], "gpus": gpus},
            "timeout_s": time_limit_s,
        }

    def _learn_place(self, entry: ManifestEntry, job: "Job") -> None:
        """Note where the log of the first node is, and how long the job ran."""
        entry.slurm_out = str(Path(entry.output_root) / "logs" / _LOG)
        if job.started_at is not None and job.ended_at is not None:
            entry.elapsed_s = job.ended_at - job.started_at
