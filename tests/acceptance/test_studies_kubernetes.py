"""A study of two strategies whose jobs are pods: gangs of two, which meet where gpuyard
says.

In place of PyTorch runs a small program that takes torchrun's words. With
GPUYARD_REAL_MODELS it is PyTorch on a tiny random Llama, and the tokens are those of
transformers, however the model is split.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.studies.test_runtime_programs import running
from tests.support.huggingface import make_trainer_python
from tests.support.instance import make_instance
from tests.support.kubernetes import Cluster, Node
from tests.unit.studies.folders import make_model

IMAGE = "python:3.11-slim"
IS_REAL = "GPUYARD_REAL_MODELS" in os.environ
COUNT = 3
TIMEOUT_S = 600 if IS_REAL else 200
STRATEGIES = {
    "tiny_pp1_tp2_n2": "tensor_across_nodes",
    "tiny_pp2_tp1": "pipeline_across_nodes",
}
# The second process of the gang tells the first one its name; the first one answers the
# prompts with that.
STAND_IN = """\
import json, pathlib, socket, sys, time

words = dict(word.lstrip("-").split("=", 1) for word in sys.argv if "=" in word)
rank = int(words["node-rank"])
place = words["master-addr"], int(words["master-port"])
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        told = server.accept()[0].makefile().read()
else:
    while True:
        try:
            meeting = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    with meeting:
        meeting.sendall(socket.gethostname().encode())
config = json.loads(pathlib.Path(sys.argv[-1]).read_text())
root = pathlib.Path(config["output_root"])
prompts = pathlib.Path(config["prompt_df_path"]).with_suffix(".jsonl").read_text()
lines = []
for line in prompts.splitlines() if rank == 0 else ():
    prompt = json.loads(line)
    row = {"prompt_id": prompt["prompt_id"], "variant": prompt["variant"]}
    row |= {"completion": told, "latency_ms": 2.0, "tokens_generated": 1}
    lines.append(json.dumps(row) + "\\n")
(root / "outputs" / f"shard_{rank}.jsonl").write_text("".join(lines))
report = {"rank": rank, "rows": len(lines), "complete": True, "generate_s": 1.0}
(root / "metrics" / f"metrics_rank_{rank}.json").write_text(json.dumps(report))
"""


def write_study(folder: Path) -> None:
    """A study of two pods with one process each, its model, and what runs there."""
    (folder / "data").mkdir(parents=True)
    folder.chmod(0o777)
    if IS_REAL:
        python = make_trainer_python()
        command = [python, running.PROGRAMS / "reference.py", folder, 1, 0, "llama"]
        codes, text = running.run(command, 1)
        assert codes == [0], text
        asked = (folder / "llama" / "prompts.jsonl").read_text().splitlines()
        texts = [json.loads(line)["prompt"] for line in asked][:COUNT]
    else:
        (folder / "stand_in.py").write_text(STAND_IN)
        python = folder / "python3"
        # Pods do not see this host's /tmp, where an environment may be.
        real = Path(sys.base_prefix) / "bin" / "python3"
        program = folder / "stand_in.py"
        python.write_text(f'#!/bin/sh\nexec {real} -I {program} "$@"\n')
        python.chmod(0o755)
        make_model(folder / "llama")
        texts = [f"Question {number}" for number in range(COUNT)]
    for variant in ("2k", "4k"):
        (folder / "data" / f"prompts_{variant}.txt").write_text("\n---\n".join(texts))
    (folder / "study.toml").write_text(
        f"""
[model]
name = "tiny"
path = "llama"
[prompts]
count = {COUNT}
[generation]
device = "cpu"
precision = "fp32"
max_new_tokens = 5
[slurm]
gres = ""
python = "{python}"
environment = {{ OMP_NUM_THREADS = "1" }}
[kubernetes]
image = "{IMAGE}"
volumes = {{ "{folder}" = "pvc:studies" }}
"""
        + "".join(
            f'[[strategies]]\nkind = "{kind}"\nnodes = 2\n'
            for kind in STRATEGIES.values()
        )
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two nodes, and a claim for the folder of the study."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "studies"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    with Cluster([Node("n1"), Node("n2")]) as made:
        made.create(claim)
        yield made


@pytest.mark.timeout(TIMEOUT_S)
def test_a_study_of_pods_that_meet(cluster: Cluster, tmp_path: Path) -> None:
    config = cluster.kubeconfig(tmp_path / "kubeconfig")
    folder = cluster.claim("studies")
    write_study(folder)
    with make_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text(
            f'[providers.kubernetes]\nkubeconfig = "{config}"\nnamespace = "default"\n'
            "poll_s = 0.1\nrun_as_user = 0\n"
        )
        instance.ok("up")
        words = ("study", "run", str(folder), "--provider", "kubernetes")
        ended = instance.run(*words, timeout=TIMEOUT_S - 20)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        entries = instance.json("study", "status", str(folder))["items"]
        assert [one["strategy_id"] for one in entries] == list(STRATEGIES)
        for entry in entries:
            assert entry["status"] == "COMPLETED"
            assert instance.job(entry["gpuyard_job"]).provider == "kubernetes"
            check_answers(folder, Path(entry["output_root"]))


def check_answers(folder: Path, output: Path) -> None:
    """The pods met: the answers tell of both, and each has a log of its own."""
    rows = [
        json.loads(line)
        for shard in sorted(output.glob("outputs/shard_*.jsonl"))
        for line in shard.read_text().splitlines()
    ]
    assert len(rows) == 2 * COUNT
    if IS_REAL:
        expected = running.expected(folder / "llama")
        hosts = {one["host"] for one in running.metrics_of(output)}
        assert len(hosts) == 2
        for row in rows:
            assert row["token_ids"] == expected[row["prompt_id"]]
    else:
        assert {row["completion"][-2:] for row in rows} == {"-1"}
    logs = sorted(path.name for path in output.glob("logs/node-*.out"))
    assert logs == ["node-0.out", "node-1.out"]
