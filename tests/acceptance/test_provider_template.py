"""`gpuyard new provider`: what it writes out is installed, passes its own tests, and
runs jobs.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.plugin import plugin_environment
from tests.support.wait import wait_until

PYTHON = [sys.executable, "-m"]


def installed(instance: TestInstance) -> TestInstance:
    """The instance with a provider `acme` written out from the template and installed
    beside gpuyard.
    """
    instance.ok("new", "provider", "acme")
    instance.environment |= plugin_environment(
        instance.work / "site", instance.work / "acme" / "src"
    )
    done = run(instance, "pip", "install", "--quiet", "--editable", "./acme")
    assert done.returncode == 0, done.stderr
    return instance


def run(
    instance: TestInstance, *words: str, timeout: float = 110
) -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` in the instance's work folder."""
    return subprocess.run(
        [*PYTHON, *words],
        cwd=instance.work,
        env=instance.environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def configure(instance: TestInstance, text: str) -> None:
    instance.home.root.mkdir(parents=True, exist_ok=True)
    (instance.home.root / "gpuyard.toml").write_text(text)


@pytest.fixture(scope="module")
def acme() -> Iterator[TestInstance]:
    """An instance whose provider `acme` is in use."""
    with make_instance() as instance:
        configure(installed(instance), "[providers.acme]\npoll_s = 0.1\n")
        instance.ok("up")
        yield instance


def test_it_is_listed_with_what_it_offers(acme: TestInstance) -> None:
    wait_until(
        lambda: acme.json("offers")["items"],
        what="acme to have been asked for its offers",
    )
    (listed,) = [
        item for item in acme.json("providers")["items"] if item["name"] == "acme"
    ]
    assert listed["status"] == "healthy"
    offers = {offer["id"]: offer for offer in acme.json("offers")["items"]}
    assert set(offers) == {"acme/toy.cpu", "acme/toy.t4", "acme/toy.a100x2"}
    assert (
        offers["acme/toy.a100x2"]["gpus"],
        offers["acme/toy.a100x2"]["gpu_memory_gb"],
    ) == (2, 80)
    assert offers["acme/toy.t4"]["region"] == "here"


def test_a_job_runs_there(acme: TestInstance) -> None:
    done = acme.run(
        "run",
        "--name",
        "hello",
        "--provider",
        "acme",
        "--",
        "sh",
        "-c",
        "echo hello; exit 3",
    )
    assert (done.returncode, done.stdout) == (3, "hello\n")
    job = acme.json("show", "hello")
    assert (job["provider"], job["state"], job["exit_code"]) == ("acme", "failed", 3)
    assert job["provider_ref"].startswith("gpuyard-attempt_")
    machine = acme.home.root / "acme" / "cloud" / "machines" / job["provider_ref"]
    wait_until(lambda: not machine.exists(), what="the machine to be deleted")
    assert acme.ok("logs", "hello") == "hello\n"
    # Of a provider without agents, the server's copy is looked through.
    assert acme.ok("logs", "hello", "--regex", "l+o$") == "hello\n"
    assert acme.json("logs", "hello", "--tail", "1")["offset"] == 0


def test_a_gpu_job_goes_to_the_type_that_has_it(acme: TestInstance) -> None:
    printed = acme.ok(
        "run",
        "--name",
        "two",
        "--gpus",
        "2",
        "--gpu-class",
        "A100",
        "--provider",
        "acme",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
    )
    assert printed == "0,1\n"


def test_a_job_is_cancelled_and_one_times_out(acme: TestInstance) -> None:
    job_id = acme.submit(["sleep", "600"], provider="acme", name="long")
    acme.wait(job_id, "running")
    acme.ok("cancel", "long")
    assert acme.wait(job_id).state == "cancelled"
    timed = acme.submit(["sleep", "600"], provider="acme", timeout_s=1)
    assert acme.wait(timed).state == "timed_out"


def test_a_killed_server_finds_its_machine_again(acme: TestInstance) -> None:
    job_id = acme.submit(
        ["sh", "-c", "sleep 3; echo once"], provider="acme", name="survivor"
    )
    acme.wait(job_id, "running")
    acme.kill("server")
    acme.ok("up")
    assert acme.wait(job_id).state == "completed"
    assert acme.ok("logs", "survivor") == "once\n"
    assert len(acme.json("show", "survivor")["attempts"]) == 1


def test_a_lost_machine_is_told(acme: TestInstance) -> None:
    job_id = acme.submit(["sleep", "10"], provider="acme", name="unlucky")
    acme.wait(job_id, "running")
    reference = acme.json("show", "unlucky")["provider_ref"]
    pid = int(
        (acme.home.root / "acme" / "cloud" / "machines" / reference / "pid").read_text()
    )
    subprocess.run(["kill", f"-{signal.SIGKILL}", str(pid)], check=True)
    job = acme.wait(job_id)
    assert (job.state, job.reason) == ("failed", "node_lost")


def test_a_wrong_setting_is_one_clear_error(
    acme: TestInstance, instance: TestInstance
) -> None:
    instance.environment["PYTHONPATH"] = acme.environment["PYTHONPATH"]
    configure(instance, '[providers.acme]\nregoin = "east"\n')
    done = instance.run("up")
    assert done.returncode != 0
    assert "providers.acme.regoin: is not a field (did you mean region?)" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["new", "provider", "My-Cloud"],
            "name: 'My-Cloud' cannot be the name of a provider",
        ),
        (
            ["new", "provider", "there", "--name", "../up"],
            "name: '../up' cannot be the name of a provider",
        ),
        (
            ["new", "provider", "there", "--name", "slurm"],
            "name: a provider called 'slurm' is installed",
        ),
        (
            ["new", "nanogpt", "there", "--name", "gpt"],
            "name: template nanogpt has none",
        ),
    ],
)
def test_a_name_that_will_not_do_is_one_clear_error(
    instance: TestInstance, words: list[str], said: str
) -> None:
    done = instance.run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpuyard: {said}")
    assert done.stderr.count("\n") == 1
    assert list(Path(instance.work).iterdir()) == []
