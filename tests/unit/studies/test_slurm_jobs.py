"""The folders and scripts of a study's jobs: what stands in them, and what a shell
makes of them.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuyard.studies.slurm_jobs import SlurmJobFactory, clock
from gpuyard.studies.strategies import (
    HybridTensorPipeline,
    ParallelismStrategy,
    TensorParallelAcrossNodes,
)
from gpuyard.studies.study import Study, load_study


def study_in(folder: Path, **slurm: Any) -> Study:
    """A study whose folder has a name that shells and Slurm dislike."""
    root = folder / 'a "user\'s" study #1, 50%j; $(touch hacked)'
    root.mkdir()
    engine = slurm.pop("engine", "torch")
    profiler = slurm.pop("profiler", "none")
    lines = "\n".join(f"{key} = {_toml(value)}" for key, value in slurm.items())
    (root / "study.toml").write_text(
        '[model]\nname = "meta-llama/Llama-3.1-8B"\npath ='
        f' "model"\n[generation]\nengine = "{engine}"\nprofiler ='
        f' "{profiler}"\n[slurm]\n{lines}\n[[strategies]]\nkind = "hybrid"\n'
    )
    return load_study(root)


def _toml(value: Any) -> str:
    inside = (
        ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items())
        if isinstance(value, dict)
        else ""
    )
    return f"{{ {inside} }}" if inside else json.dumps(value)


def factory_in(folder: Path, **slurm: Any) -> SlurmJobFactory:
    study = study_in(folder, **slurm)
    return SlurmJobFactory(study, study.runs / "run_1")


def write(
    factory: SlurmJobFactory, strategy: ParallelismStrategy, **overrides: int
) -> tuple[str, dict[str, Any]]:
    name = strategy.strategy_id(factory.study.model.short_name, overrides)
    script = factory.write(strategy, name, overrides, ("2k", "4k"), None)
    return script.read_text(), json.loads(factory.config_path(name).read_text())


def test_the_header_is_the_documents(tmp_path: Path) -> None:
    factory = factory_in(
        tmp_path, partition="gpu", account="lab", time_limit="01:30:00"
    )
    script, _ = write(factory, HybridTensorPipeline())
    header = [
        line.removeprefix("#SBATCH --")
        for line in script.splitlines()
        if line.startswith("#SBATCH")
    ]
    root = factory.output_root("llama8b_pp2_tp4")
    named = str(root).replace('"', '\\"')
    assert header == [
        "job-name=llama8b_pp2_tp4",
        "nodes=2",
        "gres=gpu:4",
        "ntasks-per-node=4",
        "time=01:30:00",
        f'output="{named.replace("%", "%%")}/logs/slurm-%j.out"',
        f'chdir="{named}"',
        "no-requeue",
        "partition=gpu",
        "account=lab",
    ]
    assert {path.name for path in root.iterdir()} == {
        "exp_config.json",
        "job.slurm",
        "outputs",
        "repeats",
        "load",
        "metrics",
        "logs",
        "profiling",
    }


def test_the_configuration_has_the_documents_keys_and_ours(tmp_path: Path) -> None:
    factory = factory_in(tmp_path, apptainer_image="image.sif")
    _, config = write(factory, HybridTensorPipeline(), batch_size=16)
    assert (config["strategy_id"], config["world_size"], config["batch_size"]) == (
        "llama8b_pp2_tp4",
        8,
        16,
    )
    assert config["apptainer_image"] == config["appainter_image"] == "image.sif"
    assert config["output_root"] == str(factory.output_root("llama8b_pp2_tp4"))
    assert (config["output_shard_pattern"], config["metrics_file"]) == (
        "shard_{rank}.jsonl",
        "metrics_rank_{rank}.json",
    )
    assert config["variants"] == ["2k", "4k"]


def run(
    factory: SlurmJobFactory, strategy: ParallelismStrategy, tmp_path: Path
) -> dict[str, list[str]]:
    """What the script starts, by program: it is run by a real shell, and each program
    only writes down its words.
    """
    script, _ = write(factory, strategy)
    programs = tmp_path / "bin"
    programs.mkdir()
    note = (
        '#!/bin/sh\nname=$(basename "$0")\nprintf "%s\\0" "$@" >>'
        ' "$NOTES/$name"\nprintf "\\n" >> "$NOTES/$name"\n'
    )
    for name in (
        "srun",
        "module",
        "apptainer",
        "deepspeed",
        "ray",
        "nsys",
        "perf",
        "python3",
    ):
        (programs / name).write_text(note)
        (programs / name).chmod(0o755)
    (programs / "scontrol").write_text("#!/bin/sh\nprintf 'node1\\nnode2\\n'\n")
    (programs / "scontrol").chmod(0o755)
    (tmp_path / "notes").mkdir()
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NOTES": str(tmp_path / "notes"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    subprocess.run(
        ["bash", "-c", script], env=environment, check=True, timeout=30, cwd=tmp_path
    )
    assert not (tmp_path / "hacked").exists()
    return {
        path.name: path.read_text().replace("\0\n", "").split("\0")
        for path in (tmp_path / "notes").iterdir()
    }


def test_words_stay_words(tmp_path: Path) -> None:
    factory = factory_in(
        tmp_path,
        environment={"ODD": "$(touch hacked) 'it''s'"},
        modules=["cuda; touch hacked"],
    )
    started = run(factory, TensorParallelAcrossNodes(num_nodes=2, tp_size=2), tmp_path)
    root = factory.output_root("llama8b_pp1_tp2_n2")
    assert started["srun"] == [
        "--kill-on-bad-exit=1",
        "--nodes=2",
        "--ntasks-per-node=1",
        "python3",
        f"{factory.run}/runtime/run_distributed_inference.py",
        "--config",
        f"{root}/exp_config.json",
    ]
    assert started["module"] == ["load", "cuda; touch hacked"]


def test_in_a_container_the_paths_are_the_same(tmp_path: Path) -> None:
    factory = factory_in(
        tmp_path, apptainer_image="/images/torch.sif", binds=["/scratch:/scratch"]
    )
    started = run(factory, TensorParallelAcrossNodes(num_nodes=2, tp_size=2), tmp_path)[
        "srun"
    ]
    assert started[3:6] == ["apptainer", "exec", "--nv"]
    assert f"--bind={factory.run.parent}:/exp" in started
    assert f"--bind={factory.study.model.path.parent}:/models" in started
    assert started[started.index("/images/torch.sif") + 1] == "python3"


@pytest.mark.parametrize(
    ("launcher", "nodes", "program", "words"),
    [
        (
            "deepspeed",
            1,
            "deepspeed",
            ["--num_nodes=1", "--num_gpus=4", "--master_port", "20007"],
        ),
        (
            "deepspeed",
            2,
            "srun",
            ["--kill-on-bad-exit=1", "--nodes=2", "--ntasks-per-node=4", "python3"],
        ),
        (
            "torchrun",
            2,
            "srun",
            [
                "--kill-on-bad-exit=1",
                "--nodes=2",
                "--ntasks-per-node=1",
                "python3",
                "-m",
                "torch.distributed.run",
                "--nnodes=2",
                "--rdzv-backend=c10d",
                "--nproc-per-node=4",
                "--rdzv-endpoint",
                "node1:20007",
            ],
        ),
    ],
)
def test_other_launchers(
    tmp_path: Path, launcher: str, nodes: int, program: str, words: list[str]
) -> None:
    factory = factory_in(tmp_path, launcher=launcher)
    strategy = HybridTensorPipeline(
        num_nodes=nodes, gpus_per_node=4, tp_size=4, pp_size=nodes
    )
    assert run(factory, strategy, tmp_path)[program][: len(words)] == words


def test_one_process_drives_vllm(tmp_path: Path) -> None:
    factory = factory_in(tmp_path, engine="vllm")
    strategy = HybridTensorPipeline(num_nodes=1, gpus_per_node=4, tp_size=4, pp_size=1)
    started = run(factory, strategy, tmp_path)
    assert "srun" not in started
    assert started["python3"][-2:] == [
        "--config",
        str(factory.config_path("llama8b_pp1_tp4")),
    ]


def test_vllms_nodes_meet_inside_the_container(tmp_path: Path) -> None:
    factory = factory_in(tmp_path, engine="vllm", apptainer_image="/images/vllm.sif")
    script, _ = write(
        factory,
        HybridTensorPipeline(num_nodes=2, gpus_per_node=4, tp_size=4, pp_size=2),
    )
    rays = [line for line in script.splitlines() if "ray.scripts.scripts" in line]
    assert len(rays) == 3
    own = "/images/vllm.sif python3 -m ray.scripts.scripts st"
    assert all("apptainer exec --nv" in line and own in line for line in rays)
    assert "-ge 2 ]; do" in rays[2], "both nodes are there"


@pytest.mark.parametrize("meets", [True, False])
def test_the_nodes_of_ray_meet_in_bounded_time(tmp_path: Path, meets: bool) -> None:
    factory = factory_in(tmp_path, engine="vllm")
    script, _ = write(
        factory,
        HybridTensorPipeline(num_nodes=2, gpus_per_node=1, tp_size=1, pp_size=2),
    )
    begin = script.index("deadline=")
    waiting = script[begin : script.index("done\n", begin) + 5]
    nodes = 2 if meets else 1
    ray = tmp_path / "python3"
    ray.write_text(f"#!/bin/sh\nseq {nodes} | sed 's/^/ 1 node_/'\n")
    ray.chmod(0o755)
    # Time stands at the deadline.
    ended = subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{waiting.replace('+ 300', '+ 0')}echo met"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "MASTER_PORT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == ("met\n" if meets else ""), ended.stderr
    assert ended.returncode == (0 if meets else 1)
    if not meets:
        assert "the nodes of Ray did not meet in 300 s" in ended.stderr


def test_a_server_is_started_once_on_each_node(tmp_path: Path) -> None:
    factory = factory_in(tmp_path, engine="torch")
    strategy = HybridTensorPipeline(
        num_nodes=2,
        gpus_per_node=4,
        tp_size=4,
        pp_size=2,
        engine="sglang",
        engine_options={"mem_fraction_static": 0.8},
        quantization="fp8",
        name="a b",
    )
    name = strategy.strategy_id("llama8b")
    assert name == "llama8b_pp2_tp4_sglang_fp8_a-b"
    words = run(factory, strategy, tmp_path)["srun"]
    assert words[:4] == [
        "--kill-on-bad-exit=1",
        "--nodes=2",
        "--ntasks-per-node=1",
        "python3",
    ]
    config = json.loads(factory.config_path(name).read_text())
    assert config["engine"] == "sglang"
    assert config["engine_options"] == {
        "mem_fraction_static": 0.8,
        "quantization": "fp8",
    }
    assert config["quantization"] == "fp8"


def test_each_process_has_a_profile_of_its_own(tmp_path: Path) -> None:
    factory = factory_in(tmp_path, profiler="perf")
    started = run(
        factory, HybridTensorPipeline(num_nodes=2, gpus_per_node=2, tp_size=2), tmp_path
    )["srun"]
    each = started[3:]
    environment = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "NOTES": str(tmp_path),
        "SLURM_PROCID": "3",
    }
    subprocess.run(each, env=environment, check=True, timeout=30, cwd=tmp_path)
    words = (tmp_path / "perf").read_text().split("\0")
    into = factory.output_root("llama8b_pp2_tp2") / "profiling"
    assert words[:4] == ["record", f"--output={into}/perf_rank_3.data", "--", "python3"]


def test_what_an_earlier_try_left_is_gone_but_for_its_logs(tmp_path: Path) -> None:
    factory = factory_in(tmp_path)
    write(factory, HybridTensorPipeline())
    root = factory.output_root("llama8b_pp2_tp4")
    for name in ("outputs", "logs"):
        (root / name / "old").touch()
    write(factory, HybridTensorPipeline())
    assert [(root / name / "old").exists() for name in ("outputs", "logs")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "00:00:59"), (3600, "01:00:00"), (360000.5, "100:00:00")]
)
def test_times(seconds: float, text: str) -> None:
    assert clock(seconds) == text
