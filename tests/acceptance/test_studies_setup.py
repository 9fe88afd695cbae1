"""The first half of a study through the command: init, validate, plan, and a baseline
from a real model server.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpuyard.studies.tables import read_table, rows_of
from tests.integration.studies.endpoint import KEY, MODEL, fails, says, serve
from tests.support import huggingface
from tests.support.instance import REAL_GPUYARD, TestInstance, gpuyard
from tests.support.model_server import OFFLINE, served
from tests.support.programs import run_program
from tests.support.terminal import terminal
from tests.support.web import http
from tests.unit.studies.folders import NO_SERVER, make_study

fast_trainer_python = huggingface.fast_trainer_python
ROOT = Path(__file__).parents[2]
STRATEGIES = """
[[strategies]]
kind = "pipeline_across_nodes"
nodes = 2
[[strategies]]
kind = "custom"
gpus_per_node = 2
dp = 2
"""


def study(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [*gpuyard("study"), "study", *map(str, words)],
        env=os.environ | NO_SERVER,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tiny_model(
    fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a model that says nonsense."""
    folder = tmp_path_factory.mktemp("tiny")
    words = [
        fast_trainer_python,
        ROOT / "tests" / "programs" / "tinymodel" / "make.py",
        folder,
        ROOT / "README.md",
    ]
    run_program(words, env=os.environ | OFFLINE)
    return folder


def write_study(folder: Path, model: Path, url: str) -> None:
    study("init", folder)
    for variant in ("2k", "4k"):
        prompts = [
            f"Tell me of {what} ({variant})." for what in ("jobs", "nodes", "GPUs")
        ]
        (folder / "data" / f"prompts_{variant}.txt").write_text(
            "\n---\n".join(prompts) + "\n"
        )
    (folder / "study.toml").write_text(
        f'[model]\nname = "tiny/Tiny-1m"\npath = "{model}"\n[prompts]\ncount ='
        f' 3\nbudgets = {{ 2k = 20, 4k = 40 }}\n[baseline]\nbase_url = "{url}"\nmodel ='
        f' "{model}"\napi_key_env = ""\nmax_tokens = 6\n[generation]\nprecision ='
        ' "fp32"\nmax_new_tokens = 6\n' + STRATEGIES
    )


def split_in_three(folder: Path) -> str:
    """What is said of a layout that cannot be; it is taken out again."""
    path = folder / "study.toml"
    text = path.read_text()
    path.write_text(text + '[[strategies]]\nkind = "tensor_across_nodes"\nnodes = 3\n')
    said = study("validate", folder, code=2)
    path.write_text(text)
    return said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_study_up_to_its_baseline(
    fast_trainer_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    with served(fast_trainer_python, tiny_model, tmp_path / "home") as url:
        write_study(folder, tiny_model, url)
        checked = study("validate", folder)
        assert "The study can run." in checked
        # Counted by the model's own tokenizer.
        assert "% off its budget of 40" in checked
        assert "3-way" in split_in_three(folder)
        rows = json.loads(study("plan", folder, "--json"))["items"]
        assert {row["world_size"] for row in rows} == {2} and {
            row["reason"] for row in rows
        } == {""}
        with terminal(
            [*REAL_GPUYARD, "study", "baseline", str(folder), "--variant", "2k"],
            env=os.environ | NO_SERVER,
        ) as seen:
            seen.expect("baseline .*3/3")
            seen.expect("3 of 3 prompts are answered")
            assert seen.leave() == 0
        assert "6 of 6 prompts are answered" in study("baseline", folder)
    table = rows_of(read_table(folder / "results" / "baseline_prompts.parquet"))
    assert [row["status"] for row in table] == ["ok"] * 6
    assert all(
        row["local_completion"] and 1 <= row["local_tokens"] <= 6 for row in table
    )
    assert all(row["local_latency_ms"] > 0 and row["source"] in url for row in table)
    assert all(row["prompt_tokens"] > 5 for row in table)
    # The server is gone, and nothing has to be asked.
    assert "6 of 6 prompts are answered" in study("baseline", folder)


def test_a_small_run_asks_for_the_baseline_of_its_own_prompts(
    instance: TestInstance,
) -> None:
    """In an instance without Slurm, which refuses the jobs."""
    folder = instance.work / "study"
    with serve() as endpoint:
        endpoint.answer = lambda prompt, _: (
            fails(400, "no") if prompt.startswith("Question 2") else says("Yes.")
        )
        make_study(
            folder,
            f'[baseline]\nbase_url = "{endpoint.url}"\nmodel = "{MODEL}"\nretries'
            " = 0\n",
        )
        words = ["study", "run", str(folder), "--limit", "2", "--variant"]
        for wrong, code in ((["8k"], 2), (["2k", "--only", "nothing"], 3)):
            assert (
                instance.run(*words, *wrong, env={"OPENAI_API_KEY": KEY}).returncode
                == code
            )
        assert not endpoint.asked
        done = instance.run(
            *words, "2k", "--only", "hybrid", env={"OPENAI_API_KEY": KEY}
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(prompt[:10] for prompt in endpoint.asked) == [
        "Question 1",
        "Question 2",
    ]
    assert "warning  no baseline for p02 of 2k: HTTP 400: no" in done.stdout
    (entry,) = instance.json("study", "status", str(folder))["items"]
    assert (entry["status"], "refused" in entry["reason"]) == ("FAILED", True)
    with http(instance) as client:
        (left,) = client.get("/api/v1/studies").json()["items"]
        instance.ok("study", "report", str(folder))
        (again,) = client.get("/api/v1/studies").json()["items"]
    assert again["at"] > left["at"], "a report tells the server too"
