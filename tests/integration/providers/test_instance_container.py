"""Jobs with an image on a rented machine: what the agent there runs for them."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from gpuyard.domain.attempt_order import AttemptOrder, ResumePoint
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.providers.instances.container import (
    container_name,
    in_container,
    removal_of,
)
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.wait import wait_until

NASTY = "a b'c\"d$(false)`id`\\n\n;&|<>*?~#!{}[]"
ORDER = AttemptOrder(
    attempt_id="attempt_1", name="job", job_id="job_1", command=("true",), image="i"
)


def argv(tmp_path, order, **environment):
    """The words that a stand-in for Docker gets, and the folder where it runs."""
    docker = tmp_path / "docker"
    docker.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdout.write('\\0'.join(sys.argv[1:]))\n"
    )
    docker.chmod(0o755)
    folder = tmp_path / "work, 1"
    folder.mkdir()
    done = subprocess.run(
        in_container(order, str(docker)).command,
        cwd=folder,
        env={"PATH": os.defpath, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0"), folder


def values(words, option):
    """What is given with an option, each time."""
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def same(folder, more=""):
    """A folder that is at the same path inside."""
    return f'type=bind,"source={folder}","target={folder}"{more}'


def test_each_word_arrives_and_no_value_is_on_the_command_line(tmp_path):
    order = replace(
        ORDER,
        command=(NASTY, f"--{NASTY}", ""),
        environment={"A": "value-a", "PATH": "/opt/bin", "HOME": "/h"},
        secrets={"KEY": "value-key"},
        volumes={f"/in,{NASTY}": '/out,"x"'},
        gpu_spec=GpuSpec(gpu_count=2, vcpus=1.5, ram_gb=2),
        gpu_uuids=("GPU-1", "GPU-2"),
        stdin=b"",
    )
    words, folder = argv(tmp_path, order)
    at = words.index("--entrypoint")
    assert words[at + 1 :] == [NASTY, "--", "i", f"--{NASTY}", ""]
    named = set(values(words, "--env"))
    assert {"A", "KEY", "HOME", "CUDA_VISIBLE_DEVICES"} <= named
    assert "PATH" not in named
    assert "value-" not in "\0".join(words)
    quoted = f"/in,{NASTY}".replace('"', '""')
    volume = f'type=bind,"source=/out,""x""","target={quoted}"'
    assert values(words, "--mount") == [same(folder), volume]
    assert values(words, "--workdir") == [str(folder)]
    assert values(words, "--gpus") == ['"device=GPU-1,GPU-2"']
    assert values(words, "--cpus") == ["1.5"]
    assert values(words, "--memory") == [str(2 << 30)]
    assert values(words, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert "--interactive" in words


def test_what_the_program_finds_on_the_machine_is_at_the_same_path(tmp_path):
    order = replace(
        ORDER,
        resume_from=ResumePoint("0" * 64, "step.ck"),
        datasets=(DatasetMount("GPUYARD_DATASET", "p", "0" * 64, "/data"),),
        gpu_spec=GpuSpec(gpu_count=1),
    )
    resumed = {"GPUYARD_RESUME_FROM": "/r/resume/step.ck", "GPUYARD_DATASET": "/d/1"}
    words, folder = argv(tmp_path, order, **resumed)
    assert values(words, "--mount") == [
        same(folder),
        same("/r/resume"),
        same("/d/1", ",readonly"),
    ]
    # Its GPUs are not known before the machine has joined: all are the job's.
    assert values(words, "--gpus") == ["all"]


def test_a_job_without_an_image_is_left_as_it_is():
    order = replace(ORDER, image=None)
    assert in_container(order) is order


PROGRAM = """\
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("step-1.ck").write_text(os.environ["WORD"])
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("uid", os.getuid(), os.environ["HOME"], "GPUYARD_NODE" in os.environ, flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def running(dockerd: Dockerd, tmp_path):
    """An attempt in a real container, which has begun."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ("python3", "program.py")
    order = replace(ORDER, image=IMAGE, command=words, environment={"WORD": "seven"})
    tmp_path.chmod(0o755)
    with (tmp_path / "output").open("wb") as output:
        running = subprocess.Popen(
            in_container(order).command,
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath, "DOCKER_HOST": dockerd.host, "WORD": "seven"},
        )
    said = tmp_path / "output"

    def begun():
        assert running.poll() is None, said.read_text()
        return "uid" in said.read_text()

    try:
        wait_until(begun, what="it to begin")
        yield running
    finally:
        running.kill()
        running.wait()
        subprocess.run(
            removal_of(ORDER.attempt_id),
            env={"PATH": os.defpath, "DOCKER_HOST": dockerd.host},
            check=False,
            capture_output=True,
        )


def test_signals_and_the_exit_code_pass_through_docker(running, tmp_path):
    said = (tmp_path / "output").read_text()
    assert f"uid {os.getuid()} /tmp False" in said
    running.send_signal(signal.SIGUSR1)
    saved = tmp_path / "step-1.ck"
    wait_until(lambda: saved.exists() and saved.read_text(), what="a checkpoint")
    assert saved.read_text() == "seven"
    running.terminate()
    assert running.wait(60) == 7


def test_the_container_of_an_attempt_that_was_killed_can_be_removed(running, dockerd):
    running.kill()
    running.wait()
    name = container_name(ORDER.attempt_id)
    assert name in dockerd.call("ps", "--format", "{{.Names}}").stdout
    environment = {"PATH": os.defpath, "DOCKER_HOST": dockerd.host}
    for _ in range(2):
        done = subprocess.run(
            removal_of(ORDER.attempt_id),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert name not in dockerd.call("ps", "--all", "--format", "{{.Names}}").stdout
