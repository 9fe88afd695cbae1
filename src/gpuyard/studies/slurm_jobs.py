"""Write the folder of each job of a study: its configuration and its Slurm script."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpuyard
from gpuyard.studies.runtime.server_commands import SERVERS
from gpuyard.studies.strategies import ParallelismStrategy
from gpuyard.studies.study import Study
from gpuyard.studies.tables import replace_file

_RUNTIME = Path(gpuyard.__file__).parent / "studies" / "runtime"
ENTRY = "run_distributed_inference.py"
# Stand for where processes meet until a shell knows it.
_HEAD = "__HEAD__"
_PORT = "__PORT__"
# srun puts the number of its task before each line.
_LABEL_LINES = "export SLURM_LABELIO=1"
_RAY_S = 300
"""How long the nodes of a Ray cluster may take to meet."""
FOLDERS = ("outputs", "repeats", "load", "metrics", "logs", "profiling")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """What a job asks Slurm for, and how it starts.

    `tasks_per_node` is 1 when another launcher starts the processes of a node. `output`
    and `gres` are in Slurm's syntax: `%j` is the job's number, `gres` is `gpu` or
    `gpu:a100`, or empty for none.
    """

    job_name: str
    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    time_limit_s: float
    output: Path
    folder: Path
    partition: str = ""
    account: str = ""
    constraint: str = ""
    gres: str = "gpu"
    lines: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class SlurmJobFactory:
    """Writes the folders of a run's jobs.

    The same study, run and strategy always give the same files.
    """

    script_name = "job.slurm"
    entry = ENTRY

    def __init__(self, study: Study, run: Path) -> None:
        self.study = study
        self.run = run

    def output_root(self, strategy_id: str) -> Path:
        """A strategy's folder."""
        return self.run / strategy_id

    def script_path(self, strategy_id: str) -> Path:
        """Its script."""
        return self.output_root(strategy_id) / self.script_name

    def config_path(self, strategy_id: str) -> Path:
        """What the runtime reads."""
        return self.output_root(strategy_id) / "exp_config.json"

    def create_config(
        self, strategy: ParallelismStrategy, strategy_id: str
    ) -> SlurmConfig:
        """What the job asks Slurm for."""
        slurm = self.study.slurm
        root = self.output_root(strategy_id)
        job_name = strategy_id
        if not strategy_id.startswith(self.study.model.short_name):
            job_name = f"{self.study.model.short_name}_{strategy_id}"
        has_own_launcher = self._launcher(strategy) != "srun"
        return SlurmConfig(
            job_name=job_name,
            nodes=strategy.num_nodes,
            gpus_per_node=strategy.gpus_per_node,
            tasks_per_node=1 if has_own_launcher else strategy.gpus_per_node,
            time_limit_s=slurm.time_limit,
            output=Path(str(root).replace("%", "%%")) / "logs" / "slurm-%j.out",
            folder=root,
            partition=slurm.partition,
            account=slurm.account,
            constraint=slurm.constraint,
            gres=slurm.gres,
            lines=slurm.sbatch,
            modules=slurm.modules,
            environment={"NCCL_DEBUG": slurm.nccl_debug, **slurm.environment},
        )

    def experiment(
        self,
        strategy: ParallelismStrategy,
        strategy_id: str,
        overrides: Mapping[str, int],
        variants: tuple[str, ...],
        limit: int | None,
    ) -> dict[str, Any]:
        """`exp_config.json`: the document's keys, then ours."""
        study = self.study
        root = self.output_root(strategy_id)
        generation = study.generation
        slurm = study.slurm
        options = dict(strategy.engine_options)
        if strategy.quantization:
            options["quantization"] = strategy.quantization
        return {
            "strategy_id": strategy_id,
            "model_name": study.model.name,
            "model_path": str(strategy.quantized_model or study.model.path),
            "num_nodes": strategy.num_nodes,
            "gpus_per_node": strategy.gpus_per_node,
            "pp_size": strategy.pp_size,
            "tp_size": strategy.tp_size,
            "dp_size": strategy.dp_size,
            "batch_size": generation.batch_size,
            "max_new_tokens": generation.max_new_tokens,
            "precision": generation.precision,
            "profiling_enabled": generation.profiler != "none",
            "prompt_df_path": str(self.run / "prompts.parquet"),
            "output_root": str(root),
            "logs_dir": str(root / "logs"),
            "profiling_dir": str(root / "profiling"),
            "run_id": self.run.name,
            "slurm_time_limit": clock(slurm.time_limit),
            "partition": slurm.partition or None,
            "account": slurm.account or None,
            "appainter_image": slurm.apptainer_image or None,
            "apptainer_image": slurm.apptainer_image or None,
            "deepspeed_config_path": None,
            "world_size": strategy.world_size,
            "output_shard_pattern": "shard_{rank}.jsonl",
            "metrics_file": "metrics_rank_{rank}.json",
            "engine": strategy.engine_of(study),
            "engine_options": options,
            "quantization": strategy.how_rounded or None,
            "variants": list(variants),
            "micro_batches": generation.micro_batches,
            "repeats": generation.repeats,
            "temperature": generation.temperature,
            "top_p": generation.top_p,
            "top_k": generation.top_k,
            "seed": generation.seed,
            "ignore_eos": generation.ignore_eos,
            "device": generation.device,
            "profiler": generation.profiler,
            "limit": limit,
            "load": study.load and study.load.model_dump(),
            **overrides,
        }

    def render_script(self, config: SlurmConfig, strategy: ParallelismStrategy) -> str:
        """The text of `job.slurm`."""
        exports = [
            f"export {name}={shlex.quote(value)}"
            for name, value in config.environment.items()
        ]
        modules = [f"module load {shlex.quote(name)}" for name in config.modules]
        profile, wrap = self._profiler(config)
        launch = shlex.join(
            [*self._container(), *self._start(strategy), *self._program(config)]
        )
        launch = launch.replace(_HEAD, '"$head"').replace(_PORT, '"$MASTER_PORT"')
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH --{line}" for line in _options(config)),
                *(
                    f"#SBATCH {line.removeprefix('#SBATCH').strip()}"
                    for line in config.lines
                ),
                "",
                "set -eo pipefail",
                *modules,
                _LABEL_LINES,
                *exports,
                *profile,
                *self._before(strategy),
                "",
                " ".join(filter(None, [*self._srun(config, strategy), wrap, launch])),
                "",
            ]
        )

    def _launcher(self, strategy: ParallelismStrategy) -> str:
        """Return what starts the processes: vllm, server, srun, torchrun or deepspeed.

        vLLM starts its own. A server is started once on each node, by srun.

        DeepSpeed's launcher needs a list of hosts and ssh to reach other nodes (0.19),
        so srun takes its place there.
        """
        engine = strategy.engine_of(self.study)
        if engine == "vllm":
            return "vllm"
        if engine in SERVERS:
            return "server"
        launcher = self.study.slurm.launcher
        return (
            "srun" if launcher == "deepspeed" and strategy.num_nodes > 1 else launcher
        )

    def _srun(self, config: SlurmConfig, strategy: ParallelismStrategy) -> list[str]:
        """Return the srun command that starts the processes or launchers."""
        if self._launcher(strategy) in ("vllm", "deepspeed"):
            return []
        return [
            "srun",
            "--kill-on-bad-exit=1",
            f"--nodes={config.nodes}",
            f"--ntasks-per-node={config.tasks_per_node}",
        ]

    def _before(self, strategy: ParallelismStrategy) -> list[str]:
        """Return the lines that set where processes connect to each other.

        The port is below the range from which systems assign ports. On several nodes,
        vLLM's processes connect through a Ray cluster of the same interpreter.
        """
        found = [
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        ]
        if self._launcher(strategy) == "vllm" and strategy.num_nodes > 1:
            python = self.study.slurm.python
            ray = shlex.join([*self._container(), python, "-m", "ray.scripts.scripts"])
            others = strategy.num_nodes - 1
            found += [
                (
                    f'srun --nodes=1 --ntasks=1 -w "$head" {ray} start --head'
                    ' --port="$MASTER_PORT" --block &'
                ),
                (
                    f'srun --nodes={others} --ntasks={others} --exclude="$head" '
                    f'{ray} start --address="$head:$MASTER_PORT" --block &'
                ),
                f"deadline=$((SECONDS + {_RAY_S}))",
                (
                    f'until [ "$({ray} status --address="$head:$MASTER_PORT"'
                    f' 2>/dev/null | grep -c " node_")" -ge {strategy.num_nodes} ]; do'
                ),
                '  if [ "$SECONDS" -ge "$deadline" ]; then',
                f'    echo "the nodes of Ray did not meet in {_RAY_S} s" >&2; exit 1',
                "  fi",
                "  sleep 1",
                "done",
                'export RAY_ADDRESS="$head:$MASTER_PORT"',
            ]
        return found

    def _start(self, strategy: ParallelismStrategy) -> list[str]:
        python = self.study.slurm.python
        match self._launcher(strategy):
            case "deepspeed":
                return ["deepspeed", *strategy.deepspeed_args(), "--master_port", _PORT]
            case "torchrun":
                return [
                    python,
                    "-m",
                    "torch.distributed.run",
                    f"--nnodes={strategy.num_nodes}",
                    "--rdzv-backend=c10d",
                    f"--nproc-per-node={strategy.gpus_per_node}",
                    "--rdzv-endpoint",
                    f"{_HEAD}:{_PORT}",
                ]
            case _:
                return [python]

    def _container(self) -> list[str]:
        """Return the command that enters the container, with the same paths inside.

        The requirements document names two more paths: `/exp` and `/models`.
        """
        slurm = self.study.slurm
        if not slurm.apptainer_image:
            return []
        models = self.study.model.path.parent
        rounded = [one.quantized_model for one in self.study.strategies]
        binds = (
            f"{self.run.parent}:/exp",
            f"{models}:/models",
            str(self.run),
            str(models),
            *dict.fromkeys(str(folder.parent) for folder in rounded if folder),
            *slurm.binds,
        )
        return [
            "apptainer",
            "exec",
            "--nv",
            *(f"--bind={bind}" for bind in binds),
            slurm.apptainer_image,
        ]

    def _program(self, config: SlurmConfig) -> list[str]:
        return [
            str(self.run / "runtime" / self.entry),
            "--config",
            str(config.folder / "exp_config.json"),
        ]

    def _profiler(self, config: SlurmConfig) -> tuple[list[str], str]:
        """Return the lines that set up nsys or perf, and the words before each process.

        Each process writes a file of its own. torch's profiler runs inside the program.
        """
        into = shlex.quote(str(config.folder / "profiling"))
        perf = (
            """'exec perf record --output="$0/perf_rank_$SLURM_PROCID.data" -- "$@"'"""
        )
        command = {
            "nsys": (
                "nsys profile --force-overwrite=true"
                f" --output={into}/rank_%q{{SLURM_PROCID}}"
            ),
            "perf": f"bash -c {perf} {into}",
        }.get(self.study.generation.profiler)
        if command is None:
            return [], ""
        name = self.study.generation.profiler
        missing = (
            f'{{ profile=(); echo "{name} is not on this node: no profile" >&2; }}'
        )
        return [
            f"command -v {name} >/dev/null && profile=({command}) || {missing}"
        ], '"${profile[@]}"'

    def write(
        self,
        strategy: ParallelismStrategy,
        strategy_id: str,
        overrides: Mapping[str, int],
        variants: tuple[str, ...],
        limit: int | None,
    ) -> Path:
        """Write a strategy's folder anew, and return the path of its script.

        Files of an earlier try are removed.
        """
        root = self.output_root(strategy_id)
        for name in FOLDERS:
            if name != "logs":
                shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True, exist_ok=True)
        config = self.create_config(strategy, strategy_id)
        experiment = self.experiment(strategy, strategy_id, overrides, variants, limit)
        replace_file(
            self.config_path(strategy_id), json.dumps(experiment, indent=2).encode()
        )
        script = self.script_path(strategy_id)
        replace_file(script, self.render_script(config, strategy).encode())
        return script

    def copy_runtime(self) -> None:
        """Copy the program beside the jobs, so that it is kept with their results."""
        shutil.copytree(
            _RUNTIME,
            self.run / "runtime",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


def _options(config: SlurmConfig) -> list[str]:
    named = {
        "partition": config.partition,
        "account": config.account,
        "constraint": config.constraint,
    }
    return [
        f"job-name={config.job_name}",
        f"nodes={config.nodes}",
        *([f"gres={config.gres}:{config.gpus_per_node}"] if config.gres else []),
        f"ntasks-per-node={config.tasks_per_node}",
        f"time={clock(config.time_limit_s)}",
        f"output={_quoted(str(config.output))}",
        f"chdir={_quoted(str(config.folder))}",
        "no-requeue",
        *(f"{name}={_quoted(value)}" for name, value in named.items() if value),
    ]


def _quoted(value: str) -> str:
    """A value as Slurm reads it in a line of `#SBATCH`, where no shell does."""
    if re.fullmatch(r"[\w%/.,:@+=-]+", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def clock(seconds: float) -> str:
    """`HH:MM:SS`, as Slurm reads it; hours may have more than two digits."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"
