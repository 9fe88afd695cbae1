"""The jobs of a study: for each layout a folder with all that it needs, and the script that Slurm runs."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpuyard
from gpuyard.studies.strategies import ParallelismStrategy
from gpuyard.studies.study import Study
from gpuyard.studies.tables import replace_file

_RUNTIME = Path(gpuyard.__file__).parent / "studies" / "runtime"
ENTRY = "run_distributed_inference.py"
# Stand for where processes meet until a shell knows it.
_HEAD, _PORT = "__HEAD__", "__PORT__"
FOLDERS = ("outputs", "metrics", "logs", "profiling")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """What a job asks Slurm for, and how it starts. `tasks_per_node` is 1 where a launcher of its own starts the other
    processes. `output` is in Slurm's words, in which `%j` is the job's number, and so is `gres`, `gpu` or `gpu:a100`;
    empty for none."""

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
    """Writes the folders of a run's jobs. The same study, run and strategy give the same files."""

    def __init__(self, study: Study, run: Path) -> None:
        self.study, self.run = study, run

    def output_root(self, strategy_id: str) -> Path:
        """A strategy's folder."""
        return self.run / strategy_id

    def script_path(self, strategy_id: str) -> Path:
        """Its script."""
        return self.output_root(strategy_id) / "job.slurm"

    def config_path(self, strategy_id: str) -> Path:
        """What the runtime reads."""
        return self.output_root(strategy_id) / "exp_config.json"

    def create_config(self, strategy: ParallelismStrategy, strategy_id: str) -> SlurmConfig:
        """What the job asks Slurm for."""
        slurm, root = self.study.slurm, self.output_root(strategy_id)
        one = self._launcher(strategy) != "srun"
        return SlurmConfig(
            strategy_id if strategy_id.startswith(self.study.model.short_name) else
            f"{self.study.model.short_name}_{strategy_id}",
            strategy.num_nodes, strategy.gpus_per_node, 1 if one else strategy.gpus_per_node, slurm.time_limit,
            Path(str(root).replace("%", "%%")) / "logs" / "slurm-%j.out", root, slurm.partition, slurm.account,
            slurm.constraint, slurm.gres,
            slurm.sbatch, slurm.modules, {"NCCL_DEBUG": slurm.nccl_debug, **slurm.environment},
        )  # fmt: skip

    def experiment(
        self, strategy: ParallelismStrategy, strategy_id: str, overrides: Mapping[str, int], variants: tuple[str, ...],
        limit: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        """`exp_config.json`: the document's keys, then ours."""
        study, root = self.study, self.output_root(strategy_id)
        generation, slurm = study.generation, study.slurm
        return {
            "strategy_id": strategy_id, "model_name": study.model.name, "model_path": str(study.model.path),
            "num_nodes": strategy.num_nodes, "gpus_per_node": strategy.gpus_per_node, "pp_size": strategy.pp_size,
            "tp_size": strategy.tp_size, "dp_size": strategy.dp_size, "batch_size": generation.batch_size,
            "max_new_tokens": generation.max_new_tokens, "precision": generation.precision,
            "profiling_enabled": generation.profiler != "none", "prompt_df_path": str(self.run / "prompts.parquet"),
            "output_root": str(root), "logs_dir": str(root / "logs"), "profiling_dir": str(root / "profiling"),
            "run_id": self.run.name, "slurm_time_limit": clock(slurm.time_limit), "partition": slurm.partition or None,
            "account": slurm.account or None, "appainter_image": slurm.apptainer_image or None,
            "apptainer_image": slurm.apptainer_image or None, "deepspeed_config_path": None,
            "world_size": strategy.world_size, "output_shard_pattern": "shard_{rank}.jsonl",
            "metrics_file": "metrics_rank_{rank}.json", "engine": generation.engine, "variants": list(variants),
            "micro_batches": generation.micro_batches, "temperature": generation.temperature,
            "top_p": generation.top_p, "top_k": generation.top_k, "seed": generation.seed,
            "ignore_eos": generation.ignore_eos, "device": generation.device, "profiler": generation.profiler,
            "limit": limit, **overrides,
        }  # fmt: skip

    def render_script(self, config: SlurmConfig, strategy: ParallelismStrategy) -> str:
        """The text of `job.slurm`."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in config.environment.items()]
        modules = [f"module load {shlex.quote(name)}" for name in config.modules]
        profile, wrap = self._profiler(config)
        launch = shlex.join([*self._container(), *self._start(strategy), *self._program(config)])
        launch = launch.replace(_HEAD, '"$head"').replace(_PORT, '"$MASTER_PORT"')
        return "\n".join([
            "#!/bin/bash", *(f"#SBATCH --{line}" for line in _options(config)),
            *(f"#SBATCH {line.removeprefix('#SBATCH').strip()}" for line in config.lines), "",
            "set -eo pipefail", *modules, *exports, *profile, *self._before(strategy), "",
            " ".join(filter(None, [*self._srun(config, strategy), wrap, launch])), "",
        ])  # fmt: skip

    def _launcher(self, strategy: ParallelismStrategy) -> str:
        """What starts the processes: vLLM itself, srun, or a program on each node. DeepSpeed's would reach other nodes
        with srun, too, but wants a list of hosts and ssh for it (0.19)."""
        if self.study.generation.engine == "vllm":
            return "vllm"
        launcher = self.study.slurm.launcher
        return "srun" if launcher == "deepspeed" and strategy.num_nodes > 1 else launcher

    def _srun(self, config: SlurmConfig, strategy: ParallelismStrategy) -> list[str]:
        """The step that starts the processes, or a program on each node that does."""
        if self._launcher(strategy) in ("vllm", "deepspeed"):
            return []
        return ["srun", "--kill-on-bad-exit=1", f"--nodes={config.nodes}",
                f"--ntasks-per-node={config.tasks_per_node}"]  # fmt: skip

    def _before(self, strategy: ParallelismStrategy) -> list[str]:
        """Where processes meet: below the ports that systems hand out by themselves. vLLM's on several nodes meet in a
        Ray cluster."""
        found = ['head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
                 "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"]  # fmt: skip
        if self._launcher(strategy) == "vllm" and strategy.num_nodes > 1:
            ray, others = shlex.join([*self._container(), "ray"]), strategy.num_nodes - 1
            found += [
                f'srun --nodes=1 --ntasks=1 -w "$head" {ray} start --head --port="$MASTER_PORT" --block &',
                f'srun --nodes={others} --ntasks={others} --exclude="$head" '
                f'{ray} start --address="$head:$MASTER_PORT" --block &',
                f'until {ray} status --address="$head:$MASTER_PORT" >/dev/null 2>&1; do sleep 1; done',
                'export RAY_ADDRESS="$head:$MASTER_PORT"',
            ]  # fmt: skip
        return found

    def _start(self, strategy: ParallelismStrategy) -> list[str]:
        python = self.study.slurm.python
        match self._launcher(strategy):
            case "deepspeed":
                return ["deepspeed", *strategy.deepspeed_args(), "--master_port", _PORT]
            case "torchrun":
                return [python, "-m", "torch.distributed.run", f"--nnodes={strategy.num_nodes}", "--rdzv-backend=c10d",
                        f"--nproc-per-node={strategy.gpus_per_node}", "--rdzv-endpoint",
                        f"{_HEAD}:{_PORT}"]  # fmt: skip
            case _:
                return [python]

    def _container(self) -> list[str]:
        """Paths are the same inside; `/exp` and `/models` are the document's names of two of them."""
        slurm = self.study.slurm
        if not slurm.apptainer_image:
            return []
        models = self.study.model.path.parent
        binds = (f"{self.run.parent}:/exp", f"{models}:/models", str(self.run), str(models), *slurm.binds)
        return ["apptainer", "exec", "--nv", *(f"--bind={bind}" for bind in binds), slurm.apptainer_image]

    def _program(self, config: SlurmConfig) -> list[str]:
        return [str(self.run / "runtime" / ENTRY), "--config", str(config.folder / "exp_config.json")]

    def _profiler(self, config: SlurmConfig) -> tuple[list[str], str]:
        """nsys and perf wrap each process where the node has them, with a file for each; torch's own runs inside."""
        into = shlex.quote(str(config.folder / "profiling"))
        perf = """'exec perf record --output="$0/perf_rank_$SLURM_PROCID.data" -- "$@"'"""
        command = {
            "nsys": f"nsys profile --force-overwrite=true --output={into}/rank_%q{{SLURM_PROCID}}",
            "perf": f"bash -c {perf} {into}",
        }.get(self.study.generation.profiler)
        if command is None:
            return [], ""
        name = self.study.generation.profiler
        missing = f'{{ profile=(); echo "{name} is not on this node: no profile" >&2; }}'
        return [f"command -v {name} >/dev/null && profile=({command}) || {missing}"], '"${profile[@]}"'

    def write(
        self, strategy: ParallelismStrategy, strategy_id: str, overrides: Mapping[str, int], variants: tuple[str, ...],
        limit: int | None,
    ) -> Path:  # fmt: skip
        """Make a strategy's folder anew, without what an earlier try left; its script."""
        root = self.output_root(strategy_id)
        for name in FOLDERS:
            if name != "logs":
                shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True, exist_ok=True)
        config = self.create_config(strategy, strategy_id)
        experiment = self.experiment(strategy, strategy_id, overrides, variants, limit)
        replace_file(self.config_path(strategy_id), json.dumps(experiment, indent=2).encode())
        script = self.script_path(strategy_id)
        replace_file(script, self.render_script(config, strategy).encode())
        return script

    def copy_runtime(self) -> None:
        """Put the program beside the jobs: what was run stays with its results."""
        shutil.copytree(_RUNTIME, self.run / "runtime", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip


def _options(config: SlurmConfig) -> list[str]:
    named = {"partition": config.partition, "account": config.account, "constraint": config.constraint}
    return [
        f"job-name={config.job_name}", f"nodes={config.nodes}",
        *([f"gres={config.gres}:{config.gpus_per_node}"] if config.gres else []),
        f"ntasks-per-node={config.tasks_per_node}", f"time={clock(config.time_limit_s)}",
        f"output={_quoted(str(config.output))}", f"chdir={_quoted(str(config.folder))}", "no-requeue",
        *(f"{name}={_quoted(value)}" for name, value in named.items() if value),
    ]  # fmt: skip


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
