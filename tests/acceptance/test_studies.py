"""A study on a real Slurm of four nodes: from prompts to tables, the same tokens however the model is split."""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_slurm import settings
from tests.support.huggingface import trainer_python
from tests.support.slurm import SlurmCluster
from tests.support.wait import wait_until
from tests.support.yard import TestYard, make_yard

__all__ = ["trainer_python"]
NEW = 8
_MODEL = Path(__file__).parents[1] / "support" / "tiny_llama.py"
STRATEGIES = ("tiny_pp1_tp4_n4", "tiny_pp4_tp1", "tiny_pp1_tp2", "tiny_pp2_tp2")
_STUDY = """
[model]
name = "tiny/Llama"
path = "model"
short_name = "tiny"
[prompts]
count = {count}
budgets = {{ "2k" = 60, "4k" = 120 }}
[generation]
max_new_tokens = {new}
batch_size = 8
precision = "fp32"
device = "cpu"
[slurm]
time_limit = "00:10:00"
python = "{python}"
environment = {{ OMP_NUM_THREADS = "1" }}
[[strategies]]
kind = "tensor_across_nodes"
nodes = 4
[[strategies]]
kind = "pipeline_across_nodes"
nodes = 4
[[strategies]]
kind = "tensor_single_node"
gpus_per_node = 2
[[strategies]]
kind = "hybrid"
nodes = 2
gpus_per_node = 2
"""


@pytest.fixture
def yard(slurm: SlurmCluster) -> Iterator[TestYard]:
    with make_yard() as made:
        made.home.create()
        made.home.settings.write_text(settings(slurm))
        made.ok("up")
        yield made
        slurm.call("scancel", "--me", check=False)


def make_study(yard: TestYard, python: Path, count: int = 20) -> Path:
    """A study of four strategies over twice so many prompts, with what transformers answers to each."""
    folder = yard.work / "study"
    yard.ok("study", "init", str(folder))
    texts: dict[str, str] = {}
    for variant, length in (("2k", 60), ("4k", 120)):
        prompts = [f"{number}: {'once more and again ' * 9}"[:length] for number in range(1, count + 1)]
        (folder / "data" / f"prompts_{variant}.txt").write_text("\n---\n".join(prompts) + "\n")
        texts |= {f"p{number:02}/{variant}": text.strip() for number, text in enumerate(prompts, 1)}
    (folder / "study.toml").write_text(_STUDY.format(count=count, new=NEW, python=python))
    (folder / "texts.json").write_text(json.dumps(texts))
    subprocess.run(
        [python, _MODEL, folder / "model", folder / "texts.json", str(NEW)], check=True, timeout=120,
        capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return folder


def tables(folder: Path) -> dict[str, dict[str, list[int]]]:
    """The token ids of each prompt, by strategy, as the results' table has them."""
    import pyarrow.parquet as pq

    (path,) = folder.glob("results/run_*.parquet")
    found: dict[str, dict[str, list[int]]] = {}
    for row in pq.read_table(path).to_pylist():
        found.setdefault(row["strategy_id"], {})[f"{row['prompt_id']}/{row['variant']}"] = row["token_ids"]
    return found


def entries(yard: TestYard, folder: Path) -> list[dict[str, Any]]:
    return yard.json("study", "status", str(folder))["items"]


def test_four_strategies_answer_as_one_process_does(yard: TestYard, trainer_python: Path) -> None:
    folder = make_study(yard, trainer_python)
    done = yard.run("study", "run", str(folder), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = json.loads((folder / "model" / "expected.json").read_text())
    assert len(expected) == 40
    found = tables(folder)
    assert set(found) == set(STRATEGIES)
    for strategy, answers in found.items():
        assert answers == expected, strategy
    assert [(entry["status"], entry["attempt"]) for entry in entries(yard, folder)] == [("COMPLETED", 1)] * 4
    (page,) = folder.glob("results/summary_run_*.html")
    assert all(strategy in page.read_text() for strategy in STRATEGIES)
    assert page.with_suffix(".csv").exists()
    assert page.with_suffix(".md").exists()
    for entry in entries(yard, folder):
        assert Path(entry["slurm_out"]).exists()
        assert entry["elapsed_s"] > 0


def test_a_study_that_is_killed_goes_on_and_submits_nothing_twice(
    yard: TestYard, slurm: SlurmCluster, trainer_python: Path
) -> None:
    folder = make_study(yard, trainer_python, count=4)
    dice = random.Random(5)
    command = ("study", "run", str(folder))
    for _ in range(3):
        study = yard.popen(*command)
        reached = f"{dice.choice(STRATEGIES[:2])}|{dice.choice(('PENDING', 'SUBMITTED', 'running'))}"
        wait_until(lambda seen=reached, run=study: _reached(folder, seen) or run.poll() is not None, 120, "a moment")
        study.kill()
        study.wait()
        command = ("study", "resume", str(folder))
    done = yard.run(*command, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = json.loads((folder / "model" / "expected.json").read_text())
    assert tables(folder) == dict.fromkeys(STRATEGIES, expected)
    jobs = [entry["job_id"] for entry in entries(yard, folder)]
    assert len(jobs) == len(set(jobs)) == 4
    assert len(yard.json("jobs")["items"]) == 4


def _reached(folder: Path, wanted: str) -> bool:
    """Has the manifest come to this strategy in this state, or past it?"""
    strategy, _, state = wanted.partition("|")
    found = list(folder.glob("runs/run_*/manifest.json"))
    newest = {entry["strategy_id"]: entry for entry in json.loads(found[-1].read_text())["entries"]} if found else {}
    return strategy in newest and state in (newest[strategy]["status"], newest[strategy]["state"], "PENDING")


def test_a_strategy_that_fails_stops_no_other_and_resume_completes_it(
    yard: TestYard, slurm: SlurmCluster, trainer_python: Path
) -> None:
    folder = make_study(yard, trainer_python, count=4)
    study = yard.popen("study", "run", str(folder))
    wait_until(lambda: _reached(folder, "tiny_pp4_tp1|running"), 120, "the second strategy")
    slurm.kill_with_all("node3")
    try:
        assert study.wait(280) == 1
        second = [entry for entry in entries(yard, folder) if entry["strategy_id"] == "tiny_pp4_tp1"]
        assert second[-1]["status"] in ("FAILED", "PARTIAL")
        assert second[-1]["reason"]
    finally:
        slurm.start_node("node3")
    others = {entry["strategy_id"]: entry["status"] for entry in entries(yard, folder)}
    assert {others["tiny_pp1_tp2"], others["tiny_pp2_tp2"]} == {"COMPLETED"}
    done = yard.run("study", "resume", str(folder), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = json.loads((folder / "model" / "expected.json").read_text())
    assert tables(folder) == dict.fromkeys(STRATEGIES, expected)


def test_one_run_at_a_time(yard: TestYard, trainer_python: Path) -> None:
    folder = make_study(yard, trainer_python, count=4)
    study = yard.popen("study", "run", str(folder))
    wait_until(lambda: _reached(folder, f"{STRATEGIES[0]}|PENDING"), 60, "the run")
    second = yard.run("study", "resume", str(folder))
    assert second.returncode == 2
    assert "study: is running in another process" in second.stderr
    study.kill()
    study.wait()
