"""An instance with a real Docker daemon: jobs that name an image run in containers, on
the GPUs the scheduler gives them.
"""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import httpx
import pytest

from gpuyard.domain.images import choose_image
from tests.support.board import with_board
from tests.support.carried_flow import check_carried_flow
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.faults import Faults
from tests.support.instance import TestInstance, gpuyard, make_instance
from tests.support.jumps import check_time_limits
from tests.support.nvml import FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library
from tests.support.over_budget import check_hard_budget
from tests.support.same import run_here_and_there
from tests.support.wait import wait_until

__all__ = ["fake_gpus", "nvml_library"]
EVENT_FILE = Path(__file__).parents[1] / "unit/insight/event_files/tensorboardX"


@pytest.fixture
def instance(dockerd: Dockerd, fake_gpus: FakeGpus) -> Iterator[TestInstance]:
    with in_front_of(dockerd, fake_gpus) as made:
        yield made


@contextmanager
def in_front_of(
    dockerd: Dockerd, fake_gpus: FakeGpus, **environment: str
) -> Iterator[TestInstance]:
    """Two GPUs, and Docker."""
    for name in ("GPU-a", "GPU-b"):
        fake_gpus.add(name, name="NVIDIA A100-SXM4-40GB", memory_mb=40960, cc="8.0")
    with make_instance(
        GPUYARD_SCHEDULER__RETRY_BASE_S="0.1",
        GPUYARD_NODE__USAGE_S="0.5",
        **fake_gpus.env(),
        **environment,
    ) as made:
        made.home.create()
        made.home.settings.write_text(
            f'[providers.docker]\nhost = "{dockerd.host}"\npoll_s = 0.2\n'
        )
        made.ok("up")
        wait_until(lambda: len(made.json("gpus")["items"]) == 2, what="the GPUs")
        yield made


def submit(instance: TestInstance, *command: str, **fields: object) -> str:
    path = instance.work / "spec.json"
    body = {
        "name": "boxed",
        "command": list(command),
        "image": IMAGE,
        "workdir": str(instance.work),
        **fields,
    }
    path.write_text(json.dumps(body))
    return instance.ok("submit", str(path)).split()[-1]


def test_a_clock_that_jumps_an_hour_moves_no_time_limit(
    dockerd: Dockerd, fake_gpus: FakeGpus, tmp_path: Path
) -> None:
    faults = Faults(tmp_path)
    with in_front_of(dockerd, fake_gpus, **faults.environment) as instance:
        check_time_limits(instance, faults.clock_is_off, partial(submit, instance))


def test_a_job_with_an_image_runs_in_a_container_on_its_gpus(
    instance: TestInstance,
) -> None:
    (instance.work / "here.txt").write_text("from the working directory\n")
    shutil.copy(EVENT_FILE, instance.work / "events")
    code = (
        "cp events events.out.tfevents.$(date +%s).$(hostname).7.0;"
        "cat here.txt; cat /etc/debian_version >/dev/null; echo GPUs"
        " $CUDA_VISIBLE_DEVICES; echo step 4: loss 0.5; echo made > out.txt; touch"
        " /etc/x || echo the image is read only; exit 3"
    )
    job = submit(
        instance,
        "sh",
        "-c",
        code,
        resources={"gpus": 1, "cpus": 0.5, "memory_gb": 0.25},
    )
    instance.wait(job)
    log = instance.ok("logs", job)
    assert log.startswith("from the working directory\nGPUs GPU-")
    assert "the image is read only" in log
    shown = instance.json("show", job)
    assert (shown["state"], shown["exit_code"], shown["provider"]) == (
        "failed",
        3,
        "docker",
    )
    assert shown["gpus"][0] in log
    assert shown["progress"]["step"] == 4
    assert shown["progress"]["metrics"] == {
        "loss": 0.5,
        "tensorboard/train/loss": 0.125,
    }
    assert (instance.work / "out.txt").read_text() == "made\n"


def test_containers_and_processes_share_the_gpus_of_a_host(
    instance: TestInstance,
) -> None:
    boxed = submit(instance, "sleep", "600", resources={"gpus": 2})
    instance.wait(boxed, "running")
    plain = instance.ok("run", "-d", "--gpus", "1", "--", "true").strip()
    assert "in use" in instance.ok("why", plain)
    curves = {"system/memory_mb", "system/cpu_cores", "system/gpu1_memory_mb"}
    with instance.client() as client:
        job = client.job(boxed)
        wait_until(lambda: curves <= job.metrics().keys(), what="what it uses")
    instance.ok("cancel", boxed)
    assert instance.wait(boxed).state == "cancelled"
    used = instance.json("show", boxed)["usage"]
    assert {"cpu_s", "peak_mb", "gpu_memory_mb"} <= used.keys()
    assert instance.wait(plain).state == "completed"


def test_one_spec_runs_unchanged_here_and_in_a_container(
    instance: TestInstance, dockerd: Dockerd
) -> None:
    # There is no registry here.
    dockerd.call("tag", IMAGE, choose_image(frozenset(), gpu=False).image.reference)
    _, there = run_here_and_there(instance, "docker")
    assert "was chosen" in there["warnings"][0]


def test_containers_and_processes_share_a_workspace(instance: TestInstance) -> None:
    instance.ok(
        "run",
        "--workspace",
        "corpus",
        "--",
        "sh",
        "-c",
        "echo words > $GPUYARD_WORKSPACE/text",
    )
    job = submit(
        instance,
        "sh",
        "-c",
        "cat $GPUYARD_WORKSPACE/text; echo $GPUYARD_WORKSPACE",
        workspace="corpus",
    )
    assert instance.wait(job).state == "completed"
    assert instance.ok("logs", job) == "words\n/workspace\n"


def test_tensorboard_shows_what_a_container_logs(
    instance: TestInstance, tmp_path: Path
) -> None:
    instance.environment |= with_board(tmp_path)
    name = "events.out.tfevents.$(date +%s).$(hostname).7.0"
    code = f"touch {name} $GPUYARD_WORKSPACE/{name}"
    job = submit(instance, "sh", "-c", code, workspace="runs", project="vision")
    assert instance.wait(job).state == "completed"
    board = instance.popen("tensorboard", job, "--port", "0")
    try:
        assert board.stdout
        found = (re.match(r"127\.0\.0\.1:(\d+) leads to", one) for one in board.stdout)
        port = next(match[1] for match in found if match)
        url = f"http://127.0.0.1:{port}/boxed-{job[-6:]}"
        for folder in ("", "/workspace"):
            answer = httpx.get(f"{url}{folder}/", timeout=60)
            assert "events.out.tfevents." in answer.text
        assert instance.json("show", "tensorboard")["project"] == "vision"
    finally:
        board.send_signal(signal.SIGINT)
        board.wait(timeout=60)


@pytest.mark.parametrize("place", ["", ":/plays"])
def test_a_container_reads_a_dataset_and_cannot_change_it(
    instance: TestInstance, place: str
) -> None:
    (instance.work / "words").write_text("to be\n")
    instance.ok("datasets", "add", "plays", "words")
    code = """
        echo $GPUYARD_DATASET_PLAYS; cd $GPUYARD_DATASET_PLAYS; cat words
        chmod u+w . words 2>/dev/null; touch words more 2>/dev/null || echo kept
        """
    job = submit(instance, "sh", "-c", code, datasets=[f"plays@1{place}"])
    assert instance.wait(job).state == "completed"
    where = place.removeprefix(":") or "/datasets/plays"
    assert instance.ok("logs", job) == f"{where}\nto be\nkept\n"


def test_a_container_goes_on_from_what_it_saved(instance: TestInstance) -> None:
    code = """
        if [ -n "$GPUYARD_RESUME_FROM" ]; then
            echo from $(cat $GPUYARD_RESUME_FROM); echo done > left.txt; exit 0
        fi
        echo 40 > new; mv new step-40.txt; sleep 600
        """
    job = submit(
        instance,
        "sh",
        "-c",
        code,
        checkpoint={"path": "step-*.txt"},
        artifacts=["left.txt"],
        retry_count=1,
    )
    (saved,) = wait_until(
        lambda: instance.json("checkpoints", job)["items"], what="a checkpoint"
    )
    assert (saved["path"], saved["step"]) == ("step-40.txt", 40)
    instance.ok("cancel", job)
    assert instance.wait(job).state == "cancelled"
    (instance.work / "step-40.txt").unlink()
    instance.ok("resume", job, "-d")
    assert instance.wait(job).state == "completed"
    assert instance.ok("logs", job) == "from 40\n"
    check_hard_budget(instance, "--image", IMAGE)
    (left,) = instance.json("artifacts", "list", job)["items"]
    assert (left["path"], left["size"]) == ("left.txt", 5)


def test_a_command_and_a_shell_reach_a_container(instance: TestInstance) -> None:
    job = submit(instance, "sh", "-c", "echo here; sleep 600")
    # Its output can be there before the daemon was asked how it is.
    instance.wait(job, "running")
    done = instance.run("exec", job, "--", "sh", "-c", "cat; exit 3", input="words")
    assert (done.returncode, done.stdout) == (3, "words"), done.stderr
    shown = instance.run("ssh", job, "echo", "$GPUYARD_JOB_ID", input="")
    assert shown.stdout == f"{instance.json('show', job)['id']}\n", shown.stderr
    # Its end is that of the command.
    words = [*gpuyard(), "exec", job, "--", "sh", "-c", "echo begun; sleep 600"]
    environment = instance.environment
    with Popen(words, env=environment, stdin=DEVNULL, stdout=PIPE, text=True) as beside:
        assert beside.stdout
        assert beside.stdout.readline() == "begun\n"
        instance.ok("cancel", job)
        assert beside.wait(60) == 137
    refused = instance.run("exec", job, "--", "true", input="")
    assert refused.returncode == 125
    assert "is over (cancelled)" in refused.stderr


def test_what_ends_a_container_is_told_apart(instance: TestInstance) -> None:
    eats = "x = bytearray(1 << 30); print(len(x))"
    jobs = {
        "out_of_memory": submit(
            instance, "python3", "-c", eats, resources={"memory_gb": 0.1}
        ),
        "timed_out": submit(instance, "sleep", "600", timeout_s=1),
        "command_not_found": submit(instance, "no-such-program"),
        "submit_failed": submit(instance, "true", image="127.0.0.1:9/no/such:image"),
    }
    for reason, job in jobs.items():
        instance.wait(job)
        shown = instance.json("show", job)
        assert shown["reason"] == reason, shown
    message = instance.json("show", jobs["submit_failed"])["attempts"][0]["message"]
    assert "127.0.0.1:9/no/such:image cannot be pulled" in message


def test_containers_outlive_gpuyard_and_their_daemon(
    instance: TestInstance, dockerd: Dockerd
) -> None:
    enough = instance.work / "enough"
    waits = f"echo here; while [ ! -e {enough} ]; do sleep 0.1; done; echo done"
    jobs = [
        submit(instance, "sh", "-c", waits, resources={"gpus": 1}) for _ in range(2)
    ]
    for job in jobs:
        instance.wait(job, "running")
    instance.kill("server")
    dockerd.stop(kill=True)
    instance.ok("up")
    wait_until(
        lambda: "unhealthy" in instance.run("providers").stdout,
        what="the daemon to be missed",
    )
    dockerd.start()
    enough.touch()
    for job in jobs:
        assert instance.wait(job).state == "completed"
        assert instance.ok("logs", job) == "here\ndone\n"
        assert len(instance.json("show", job)["attempts"]) == 1
    assert not dockerd.call(
        "ps", "-aq", "--filter", f"label=gpuyard.home={instance.home.root}"
    ).stdout.strip()


def test_without_docker_an_image_is_refused() -> None:
    with make_instance() as made:
        (made.work / "spec.json").write_text(
            json.dumps({"command": ["true"], "image": "debian:12"})
        )
        done = made.run("submit", str(made.work / "spec.json"))
        assert done.returncode == 2, done
        assert "nothing here runs containers" in done.stderr


@pytest.mark.timeout(600)  # a flow is several jobs
def test_a_flow_passes_its_files_on_between_containers(instance: TestInstance) -> None:
    check_carried_flow(instance, f'image = "{IMAGE}"')
