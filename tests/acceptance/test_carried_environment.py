"""A job's environment is that of the shell that submitted it, as with `sbatch`."""

import json
from collections.abc import Iterator

import pytest

import gpuyard
from tests.support.instance import TestInstance, make_instance

KEY = "planted-key-value"
VALUE = "planted-ordinary-value"
PRINT = 'echo "LR=$LR LEFTOVER=$LEFTOVER PROXY=$COMPANY_PROXY KEY=$HF_TOKEN TERM=$TERM"'
SHELL = {
    "LR": VALUE,
    "COMPANY_PROXY": "http://proxy",
    "HF_TOKEN": KEY,
    "TERM": "xterm",
}


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text('[jobs]\nnever_carry = ["COMPANY_*"]\n')
        made.ok("up", env={"LEFTOVER": "of whoever started the server"})
        yield made


def test_a_job_sees_what_its_own_shell_exported(instance: TestInstance) -> None:
    done = instance.run("run", "--name", "mine", "--", "sh", "-c", PRINT, env=SHELL)
    assert done.stdout.splitlines()[0] == f"LR={VALUE} LEFTOVER= PROXY= KEY= TERM="
    note = "the job does not get what looks like a key: HF_TOKEN"
    assert note in done.stderr
    assert "--secret NAME" in done.stderr
    shown = instance.ok("show", "mine")
    (line,) = [text for text in shown.splitlines() if text.startswith("environment")]
    assert "added LR" in line
    assert "missing LEFTOVER" in line
    assert "COMPANY_PROXY" not in line


def test_values_are_neither_in_the_ledger_nor_in_what_is_shown(
    instance: TestInstance,
) -> None:
    value = "planted-value-that-nothing-prints"
    shell = SHELL | {"LR": value}
    instance.ok("run", "--name", "quiet", "--", "true", env=shell)
    said = instance.ok("show", "quiet") + instance.ok("show", "quiet", "--json")
    files = [
        path
        for path in instance.home.root.rglob("*")
        if path.is_file() and instance.home.environments not in path.parents
    ]
    assert instance.home.ledger in files
    content = said.encode() + b"".join(path.read_bytes() for path in files)
    assert value.encode() not in content
    assert KEY.encode() not in content
    stored = [path for path in instance.home.environments.rglob("*") if path.is_file()]
    assert any(value in path.read_text() for path in stored)
    assert not any(KEY in path.read_text() for path in stored)


def test_clean_env_gives_the_servers_environment(instance: TestInstance) -> None:
    output = instance.ok("run", "--clean-env", "--", "sh", "-c", PRINT, env=SHELL)
    first = output.splitlines()[0]
    assert first.startswith("LR= LEFTOVER=of whoever started the server")
    assert "environment  the server's own" in instance.ok("show", "sh")


def test_job_files_and_the_python_client_carry_it_once(
    instance: TestInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"command": ["sh", "-c", PRINT], "name": "of-a-file"}
    file = instance.work / "jobs.json"
    file.write_text(json.dumps([body, body]))
    ids = instance.ok("submit", str(file), env=SHELL).split()
    monkeypatch.setenv("LR", "from Python")
    with gpuyard.Client(instance.address()) as client:
        ids.append(client.run(["sh", "-c", PRINT]).id)
    for job_id, wanted in zip(ids, [VALUE, VALUE, "from Python"], strict=True):
        instance.wait(job_id)
        assert instance.ok("logs", job_id).startswith(f"LR={wanted} LEFTOVER= ")
    specs = [instance.job(job_id).spec for job_id in ids[:2]]
    assert specs[0]["carried_environment"] == specs[1]["carried_environment"]


def test_an_environment_that_is_gone_or_unknown_is_told(
    instance: TestInstance,
) -> None:
    file = instance.work / "job.json"
    file.write_text(json.dumps({"command": ["true"], "carried_environment": "0" * 64}))
    done = instance.run("submit", str(file))
    assert done.returncode == 2
    assert "carried_environment: there is no environment 000" in done.stderr
    go = instance.work / "go"
    before = instance.submit(["sh", "-c", f"until test -e {go}; do sleep 0.05; done"])
    shell = {"ONLY_FOR_THIS": "1"}
    words = ["run", "-d", "--after", before, "--", "true"]
    job_id = instance.ok(*words, env=shell).strip()
    digest = instance.job(job_id).spec["carried_environment"]
    (instance.home.environments / digest[:2] / digest[2:]).unlink()
    go.touch()
    job = instance.wait(job_id)
    assert (job.state, job.reason) == ("failed", "environment_missing")
