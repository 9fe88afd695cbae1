"""Bad input: one clear error that names field, fault and remedy, by command and over
HTTP, and nothing half-done.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.refusal import obey_modes, refused
from tests.support.web import check_problem, http, job_count

TRUE = {"command": ["true"]}


@pytest.fixture(scope="module")
def strict_instance() -> Iterator[TestInstance]:
    """An instance whose server reads only what it may, with files and folders that jobs
    may name.
    """
    with make_instance() as instance:
        (instance.work / "folder.py").mkdir()
        (instance.work / "secret.py").write_text("print(1)")
        (instance.work / "secret.py").chmod(0)
        (instance.work / "plain").write_text("echo 1")
        instance.ok("up", preexec_fn=obey_modes)
        yield instance


@pytest.fixture
def web(strict_instance: TestInstance) -> Iterator[httpx.Client]:
    with http(strict_instance) as client:
        yield client


# What is wrong, the `gpuyard run` that asks for it, the JobSpec that does, and what the
# error says.
FAULTS: list[tuple[list[str], dict[str, Any], list[str]]] = [
    (
        ["--gpu-memory", "16XB", "--", "true"],
        {**TRUE, "resources": {"gpus": {"count": 1, "memory_gb": "16XB"}}},
        ["resources.gpus.memory_gb", "'16XB' is not a size", "such as 16GB"],
    ),
    (
        ["--timeout", "5 years", "--", "true"],
        {**TRUE, "timeout_s": "5 years"},
        ["timeout_s", "'5 years' is not a duration", "15m or 2h"],
    ),
    (
        ["--memory", "-5GB", "--", "true"],
        {**TRUE, "resources": {"memory_gb": "-5GB"}},
        ["resources.memory_gb", "'-5GB' is not a size"],
    ),
    (
        ["--memory", "99999TB", "--", "true"],
        {**TRUE, "resources": {"memory_gb": "99999TB"}},
        ["resources.memory_gb", "99999TB", "at most 1000000"],
    ),
    (
        ["--cpus", "-1", "--", "true"],
        {**TRUE, "resources": {"cpus": -1.0}},
        ["resources.cpus", "-1", "must be more than 0"],
    ),
    (
        ["--retries", "-1", "--", "true"],
        {**TRUE, "retry_count": -1},
        ["retry_count", "-1", "must be at least 0"],
    ),
    (
        ["--priority", "9", "--", "true"],
        {**TRUE, "priority": 9},
        ["priority", "9", "at most 5"],
    ),
    (
        ["-g", "5000", "--", "true"],
        {**TRUE, "resources": {"gpus": {"count": 5000}}},
        ["resources.gpus.count", "5000", "at most 1024"],
    ),
    (
        ["--gpu-class", "A10O", "--", "true"],
        {**TRUE, "resources": {"gpus": {"count": 1, "gpu_class": "A10O"}}},
        ["resources.gpus.gpu_class", "no GPU class 'A10O'", "nearest: a10"],
    ),
    (
        ["--tier", "GPU_TINY", "--", "true"],
        {**TRUE, "tier": "GPU_TINY"},
        ["tier", "'GPU_TINY'", "GPU_SMALL"],
    ),
    (
        ["--", "no-such-program"],
        {"command": ["no-such-program"]},
        ["command[0]", "no-such-program is not found", "spelling"],
    ),
    (
        ["--", "./plain"],
        {"command": ["./plain"]},
        ["command[0]", "./plain is not executable", "chmod +x"],
    ),
    (
        ["missing.py"],
        {"command": ["python3", "missing.py"]},
        ["command[1]", "there is no script missing.py", "path"],
    ),
    (
        ["folder.py"],
        {"command": ["python3", "folder.py"]},
        ["command[1]", "there is no script folder.py", "path"],
    ),
    (
        ["secret.py"],
        {"command": ["python3", "secret.py"]},
        ["command[1]", "secret.py is not readable", "chmod u+r"],
    ),
    (
        ["--env", "CUDA_VISIBLE_DEVICES=0", "--", "true"],
        {**TRUE, "environment": {"CUDA_VISIBLE_DEVICES": "0"}},
        [
            "environment.CUDA_VISIBLE_DEVICES",
            "belongs to the scheduler",
            "ask with resources.gpus",
        ],
    ),
    (
        ["--env", "A B=0", "--", "true"],
        {**TRUE, "environment": {"A B": "0"}},
        ["environment", "'A B'", "letters"],
    ),
    (
        ["--name", "a\x1b[31m", "--", "true"],
        {**TRUE, "name": "a\x1b[31m"},
        ["name", "control characters ('\\x1b')", "printable"],
    ),
    (
        ["--after", "nobody", "--", "true"],
        {**TRUE, "depends_on": ["nobody"]},
        ["depends_on", "no job 'nobody'", "name"],
    ),
    (
        ["--provider", "moon", "--", "true"],
        {**TRUE, "provider": "moon"},
        ["provider", "'moon'", "local"],
    ),
    (
        ["--checkpoint-signal", "KILL", "--", "true"],
        {**TRUE, "checkpoint": {"signal": "KILL"}},
        ["checkpoint.signal", "'KILL'", "USR1"],
    ),
]


@pytest.mark.parametrize(
    ("words", "body", "said"), FAULTS, ids=[" ".join(case[0])[:24] for case in FAULTS]
)
def test_each_fault_is_named_the_same_by_the_command_and_over_http(
    strict_instance: TestInstance,
    web: httpx.Client,
    words: list[str],
    body: dict[str, Any],
    said: list[str],
) -> None:
    before = job_count(web)
    told = refused(strict_instance, "run", "-d", *words, code=2)
    answer = web.post(
        "/api/v1/jobs", json={"workdir": str(strict_instance.work), **body}
    )
    problem = check_problem(answer, 422, "invalid_input")
    assert told == f"gpuyard: {problem['detail']}\n"
    (fault,) = problem["faults"]
    assert fault["field"] == said[0]
    for word in said:
        assert word in told
    assert job_count(web) == before


def test_a_field_that_does_not_exist_is_named_with_the_nearest(
    strict_instance: TestInstance, web: httpx.Client
) -> None:
    before = job_count(web)
    document = {**TRUE, "retrycount": 1, "resources": {"gpu": {"count": 1}}}
    (strict_instance.work / "unknown.json").write_text(json.dumps(document))
    (strict_instance.work / "unknown.toml").write_text(
        "command = ['true']\nretrycount = 1\n[resources.gpu]\ncount = 1\n"
    )
    problem = check_problem(
        web.post("/api/v1/jobs", json=document), 422, "invalid_input"
    )
    assert {(f["field"], f["remedy"]) for f in problem["faults"]} == {
        ("retrycount", "did you mean retry_count or retry_on?"),
        ("resources.gpu", "did you mean gpus or cpus?"),
    }
    for name in ("unknown.json", "unknown.toml"):
        assert set(refused(strict_instance, "submit", name, code=2).split()) == {
            "gpuyard:",
            *problem["detail"].split(),
        }
    assert job_count(web) == before


def test_more_gpus_than_any_node_has_are_refused_with_the_largest_that_fits(
    strict_instance: TestInstance, web: httpx.Client
) -> None:
    before = job_count(web)
    for words, body in (
        (["-g", "900"], {"gpus": {"count": 900}}),
        (["--cpus", "9999"], {"cpus": 9999}),
        (["--memory", "900TB"], {"memory_gb": "900TB"}),
    ):
        told = refused(strict_instance, "run", "-d", *words, "--", "true", code=4)
        problem = check_problem(
            web.post("/api/v1/jobs", json={**TRUE, "resources": body}),
            422,
            "insufficient_resources",
        )
        assert told == f"gpuyard: {problem['detail']}\n"
        assert "The largest node is" in told
    assert job_count(web) == before


def test_jobs_that_wait_for_each_other_are_refused_together(
    strict_instance: TestInstance, web: httpx.Client
) -> None:
    before = job_count(web)
    circle = [
        {**TRUE, "name": name, "depends_on": [on]}
        for name, on in (("a", "b"), ("b", "c"), ("c", "a"))
    ]
    (strict_instance.work / "circle.json").write_text(json.dumps(circle))
    problem = check_problem(web.post("/api/v1/jobs", json=circle), 422, "invalid_input")
    assert problem["faults"][0]["field"] == "depends_on"
    assert "a → " in problem["detail"] and "circle" in problem["detail"]
    assert "circle" in refused(strict_instance, "submit", "circle.json", code=2)
    assert job_count(web) == before


@pytest.mark.parametrize(
    "large",
    [{**TRUE, "args": {"data": "x" * 10_000_000}}, {"prompt": "x" * 10_000_000}],
    ids=["args", "prompt"],
)
def test_a_spec_of_ten_megabytes_is_refused_alone_and_in_a_list(
    strict_instance: TestInstance, web: httpx.Client, large: dict[str, Any]
) -> None:
    before = job_count(web)
    for document, field in ((large, "(body)"), ([TRUE, large], "1")):
        (strict_instance.work / "large.json").write_text(json.dumps(document))
        problem = check_problem(
            web.post("/api/v1/jobs", json=document), 422, "invalid_input"
        )
        assert problem["faults"][0]["field"] == field
        told = refused(strict_instance, "submit", "large.json", code=2)
        assert "10.0 MB; a spec may have 1 MB" in told
        assert "a long prompt by /v1 or `gpuyard llm`" in told
    assert job_count(web) == before


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"name": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 9999,
        b"NaN",
        b"7",
        b'"x"',
    ],
)
def test_what_is_no_json_object_is_refused(
    strict_instance: TestInstance, web: httpx.Client, raw: bytes
) -> None:
    check_problem(web.post("/api/v1/jobs", content=raw), 422, "invalid_input")
    (strict_instance.work / "raw.json").write_bytes(raw)
    refused(strict_instance, "submit", "raw.json", code=2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", ""], "'' is the name of nothing"),
        (["logs", "."], "'.' is the name of nothing"),
        (["models", "pin", ".."], "'..' is the name of nothing"),
        (["run", "--", "echo", "\udcff"], "is not UTF-8 text"),
        (["show", "\udcff"], "is not UTF-8 text"),
        (["run", "--resume-args", "'", "--", "true"], "close each quote"),
        (["run", "-g", "A100:2", "--gpu-class", "H100", "--", "true"], "say it once"),
        (["ledger", "backup", "/nowhere/x"], "/nowhere/x"),
    ],
)
def test_an_odd_argument_gets_one_line(
    strict_instance: TestInstance, words: list[str], says: str
) -> None:
    done = strict_instance.run(*words)
    assert done.returncode in (2, 125), done
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def through_a_shell(instance: TestInstance, script: str, *words: str) -> str:
    """What a command that a shell starts with `script` says on stderr."""
    command = [sys.executable, "-m", "gpuyard.cli.entry", *words]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command],
        cwd=instance.work,
        env=instance.environment,
        capture_output=True,
        text=True,
    )
    return done.stderr


@pytest.mark.parametrize("words", [["jobs"], ["nodes"], ["nodes", "--json"]])
def test_a_closed_output_is_no_fault(
    strict_instance: TestInstance, words: list[str]
) -> None:
    assert through_a_shell(strict_instance, 'exec "$@" >&-', *words) == ""


def test_a_folder_that_was_removed_is_told(strict_instance: TestInstance) -> None:
    script = 'mkdir gone; cd gone; rmdir "$PWD"; exec "$@"'
    told = through_a_shell(strict_instance, script, "run", "--", "true")
    assert told == (
        "gpuyard: workdir: the current folder was removed (change to another one)\n"
    )
