"""Job files: several jobs in one, and in YAML."""

import json
from pathlib import Path

import pytest

from tests.support.instance import TestInstance

SEVERAL = """\
workdir = "."
labels = {set = "a"}

[environment]
SIZE = "big"

[[jobs]]
name = "first"
command = ["sh", "-c", "echo $SIZE"]

[[jobs]]
name = "second"
command = ["sh", "-c", "echo $SIZE"]
environment = {SIZE = "small"}
"""
YAML = """\
name: from-yaml
command: [sh, -c, 'echo $N']
environment:
  N: "7"
"""


def written(instance: TestInstance, name: str, text: str) -> Path:
    path = instance.work / name
    path.write_text(text)
    return path


def test_a_toml_file_holds_several_jobs_and_what_they_share(
    shared_instance: TestInstance,
) -> None:
    written(shared_instance, "several.toml", SEVERAL)
    ids = shared_instance.ok("submit", "several.toml").split()
    jobs = [shared_instance.wait(job_id) for job_id in ids]
    assert [(job.name, job.labels) for job in jobs] == [
        ("first", {"set": "a"}),
        ("second", {"set": "a"}),
    ]
    assert [shared_instance.ok("logs", job_id) for job_id in ids] == [
        "big\n",
        "small\n",
    ]


@pytest.mark.parametrize("name", ["job.yaml", "job.yml", "-"])
def test_yaml_is_read(shared_instance: TestInstance, name: str) -> None:
    if name != "-":
        written(shared_instance, name, YAML)
    job_id = shared_instance.ok("submit", name, input=YAML).strip()
    shared_instance.wait(job_id)
    assert shared_instance.ok("logs", job_id) == "7\n"


def test_documents_of_a_yaml_file_are_jobs(shared_instance: TestInstance) -> None:
    written(shared_instance, "two.yaml", f"{YAML}---\n{YAML}")
    assert len(shared_instance.ok("submit", "two.yaml").split()) == 2


def test_an_error_of_sixty_jobs_names_the_one(shared_instance: TestInstance) -> None:
    jobs = [f'[[jobs]]\nname = "n{i}"\ncommand = ["true"]\n' for i in range(60)]
    jobs[41] += "priority = 9\n"
    written(shared_instance, "sixty.toml", "\n".join(jobs))
    before = len(shared_instance.json("jobs")["items"])
    done = shared_instance.run("submit", "sixty.toml")
    assert done.returncode == 2
    assert "sixty.toml, job 42 (n41): priority: " in done.stderr
    assert len(shared_instance.json("jobs")["items"]) == before


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.toml", "jobs = 3\n", "x.toml: jobs: is no list of jobs"),
        ("x.yaml", "a: [1\n", "x.yaml: is not valid"),
        ("x.yaml", "command: [true]\nstart: 2026-11-25\n", "cannot be sent as JSON"),
        ("x.toml", "jobs = [3]\n", "is int, not an object"),
    ],
)
def test_what_is_no_job_file_is_one_error(
    shared_instance: TestInstance, name: str, text: str, words: str
) -> None:
    written(shared_instance, name, text)
    done = shared_instance.run("submit", name)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_submit_takes_a_program_as_run_detached_does(
    shared_instance: TestInstance,
) -> None:
    program = ["sh", "-c", 'echo "$WHO $*"', "sh", "--json"]
    words = ["--name", "said", "--env", "WHO=me", "--", *program]
    job_id = shared_instance.ok("submit", *words).strip()
    assert shared_instance.wait(job_id).name == "said"
    assert shared_instance.ok("logs", job_id) == "me --json\n"
    document = json.loads(shared_instance.ok("submit", "--json", "true"))
    assert document["name"] == "true"


def test_estimate_takes_a_tier_a_file_and_what_run_takes(
    shared_instance: TestInstance,
) -> None:
    written(shared_instance, "job.toml", 'command = ["true"]\ntimeout_s = 7200\n')
    written(shared_instance, "train.py", "print(1)\n")
    for words in (
        ["job.toml", "--json"],
        ["--json", "--timeout", "2h", "train.py", "--lr", "0.1", "--json"],
        ["--json", "--timeout", "2h", "-d", "--retries", "2", "--name", "a", "true"],
        ["--json", "--timeout", "2h", "nanogpt", "--max_iters=1"],
    ):
        found = json.loads(shared_instance.ok("estimate", *words))
        assert [place["suits"] for place in found["items"]] == [True], words
        assert found["run_s"] <= 7200
    large = shared_instance.json("estimate", "--tier", "GPU_LARGE")
    (place,) = large["items"]
    assert not place["suits"]
    assert "GPU" in "; ".join(place["reasons"])
    both = shared_instance.run("estimate", "job.toml", "--gpus", "1")
    assert (both.returncode, "file: comes with words" in both.stderr) == (2, True)
