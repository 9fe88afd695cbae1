"""The scripts of jobs on gpuyard's own nodes, and what a shell makes of them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpuyard.studies.own_node_jobs import OwnNodeJobFactory
from gpuyard.studies.strategies import HybridTensorPipeline
from tests.unit.studies.folders import make_study


def run(
    tmp_path: Path, strategy: HybridTensorPipeline, **variables: str
) -> tuple[list[str], dict[str, str], Path]:
    """What its script starts: the words, the variables, and the log of the node."""
    study = make_study(tmp_path / "a study; $(touch hacked)")
    factory = OwnNodeJobFactory(study, study.runs / "run_1")
    name = strategy.strategy_id(study.model.short_name)
    script = factory.write(strategy, name, {}, ("2k",), None)
    assert script.name == "job.sh"
    python = tmp_path / "python3"
    python.write_text(
        "#!/usr/bin/env -S python3 -S\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    python.chmod(0o755)
    # The stand-in must not find itself.
    python.write_text(
        python.read_text().replace("/usr/bin/env -S python3", "/usr/bin/python3")
    )
    done = subprocess.run(
        ["bash", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words, environment = json.loads(done.stdout)
    log = script.parent / "logs" / f"node-{variables.get('NODE_RANK', '0')}.out"
    assert log.read_text() == done.stdout
    assert not (tmp_path / "hacked").exists()
    return words, environment, script.parent


def test_one_node_needs_no_meeting(tmp_path: Path) -> None:
    strategy = HybridTensorPipeline(num_nodes=1, gpus_per_node=2, tp_size=2, pp_size=1)
    words, environment, folder = run(tmp_path, strategy)
    assert words[:4] == [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
    ]
    assert words[-2:] == ["--config", str(folder / "exp_config.json")]
    assert environment["NCCL_DEBUG"] == "WARN"


def test_nodes_meet_where_gpuyard_says(tmp_path: Path) -> None:
    gang = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "20123"}
    words, _, _ = run(tmp_path, HybridTensorPipeline(), **gang)
    assert words[2:7] == [
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=10.0.0.7",
        "--master-port=20123",
        "--nproc-per-node=4",
    ]


@pytest.mark.parametrize(("engine", "nodes"), [("vllm", 1), ("sglang", 2)])
def test_an_engine_that_starts_its_own_processes(
    tmp_path: Path, engine: str, nodes: int
) -> None:
    strategy = HybridTensorPipeline(num_nodes=nodes, pp_size=nodes, engine=engine)
    gang = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "20123"}
    words, environment, _ = run(tmp_path, strategy, **(gang if nodes > 1 else {}))
    assert words[0].endswith("run_distributed_inference.py")
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    expected = ["1", "2", "10.0.0.7", "20123"]
    if nodes == 1:
        expected = ["0", "1", "127.0.0.1", "29500"]
    assert [environment[name] for name in names] == expected
