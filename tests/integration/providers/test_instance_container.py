"""Jobs with an image on a rented machine: what the agent there runs for them."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gpuyard.domain.attempt_order import (
    AttemptOrder,
    ResumePoint,
    config_from_order,
)
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.jobspec import CheckpointSpec
from gpuyard.providers.instances.container import (
    container_name,
    in_container,
    removal_of,
)
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.node import make_node
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
if len(sys.argv) > 1:
    assert sys.argv[1] == os.environ["GPUYARD_RESUME_FROM"]
    print("goes on from", pathlib.Path(sys.argv[1]).read_text())
    sys.exit(7)
def save(*_):
    pathlib.Path("step-1.ck").write_text(os.environ["WORD"])
signal.signal(signal.SIGUSR1, save)
print("uid", os.getuid(), os.environ["HOME"], "GPUYARD_NODE" in os.environ, flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def running(dockerd: Dockerd, tmp_path):
    """An attempt in a real container, which has begun."""
    order = replace(ORDER, image=IMAGE, command=("python3", "-c", PROGRAM))
    with (tmp_path / "output").open("wb") as output:
        running = subprocess.Popen(
            in_container(order).command,
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath, "DOCKER_HOST": dockerd.host},
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


def test_an_agent_stops_it_with_a_checkpoint_and_resumes_it(dockerd: Dockerd):
    """Signals, the account, the folders and the exit code pass through Docker."""
    order = replace(
        ORDER,
        image=IMAGE,
        command=("python3", "-c", PROGRAM),
        environment={"WORD": "seven", "DOCKER_HOST": dockerd.host},
        checkpoint=CheckpointSpec(path="*.ck", signal="USR1", resume_args=("{path}",)),
    )
    with make_node() as node:
        first = node.submit(config_from_order(in_container(order)))
        node.says(first, f"uid {os.getuid()} /tmp True")
        node.stop(first, "preempted", checkpoint=True)
        saved = node.checkpoint(first, "step-1.ck")
        assert node.ended(first).stopped == "preempted"

        resume = ResumePoint(saved.sha256, "step-1.ck")
        second = replace(order, attempt_id="attempt_2", resume_from=resume)
        job = node.submit(config_from_order(in_container(second)))
        end = node.ended(job)
        assert end.exit_code == 7, node.output(job)
        assert "goes on from seven" in node.output(job)


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
