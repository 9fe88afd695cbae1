"""An instance in front of a real Slurm cluster: the same job as here, the same words,
and what others do to its jobs.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.instance import TestInstance, make_instance
from tests.support.over_budget import check_hard_budget
from tests.support.same import run_here_and_there
from tests.support.slurm import SlurmCluster
from tests.support.slurmrestd import RestCluster
from tests.support.wait import wait_until

# Counts on from its checkpoint, and saves now and then: whoever takes a job off kills
# it without asking.
COUNTER = """
import os, sys, time
start = int(open(os.environ["GPUYARD_RESUME_FROM"]).read()) if "GPUYARD_RESUME_FROM" in os.environ else 0
print("from", start, flush=True)
step = start
def save():
    with open("new", "w") as file:
        file.write(str(step))
    os.rename("new", "step-last.txt")
while not os.path.exists(sys.argv[1]):
    step += 1
    print(f"step {step}", flush=True)
    if step % 20 == 0:
        save()
    time.sleep(0.1)
print("done at", step)
open("result.txt", "w").write("done")
"""
EVENT_FILE = Path(__file__).parents[1] / "unit/insight/event_files/tensorboardX"
# Jobs that are submitted at once.
_TOGETHER = 16


def settings(cluster: SlurmCluster, **more: object) -> str:
    """[providers.slurm] for the cluster."""
    environment = ", ".join(
        f'{name} = "{value}"' for name, value in cluster.environment.items()
    )
    lines = ["[providers.slurm]", f"environment = {{ {environment} }}", "poll_s = 0.3"]
    return (
        "\n".join(
            [*lines, *(f"{name} = {json.dumps(value)}" for name, value in more.items())]
        )
        + "\n"
    )


@pytest.fixture
def instance(slurm: SlurmCluster) -> Iterator[TestInstance]:
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1") as made:
        made.home.create()
        made.home.settings.write_text(settings(slurm))
        made.ok("up")
        yield made
        slurm.call("scancel", "--me", check=False)


def reference(instance: TestInstance, job: str) -> str:
    """Slurm's number of a job that has been submitted to it."""
    return wait_until(lambda: instance.job(job).provider_ref, what="the submission")


def test_one_spec_runs_unchanged_here_and_there(instance: TestInstance) -> None:
    here, there = run_here_and_there(instance, "slurm")
    assert here["warnings"] == there["warnings"]
    assert there["node"].startswith("node")


def test_a_job_that_finds_no_gpu_here_is_sent_there(instance: TestInstance) -> None:
    shutil.copy(EVENT_FILE, instance.work / "events")
    code = """
        cp events events.out.tfevents.$(date +%s).$(hostname).$$.0
        cp events events.out.tfevents.$(date +%s).$(hostname).1.0
        echo $CUDA_VISIBLE_DEVICES on $SLURMD_NODENAME
        """
    words = ("run", "--name", "far", "--gpus", "2", "--", "sh", "-c", code)
    done = instance.run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0,1 on node")
    logged = instance.json("show", "far")["progress"]
    assert logged["metrics"] == {"tensorboard/train/loss": 0.125}, logged
    refused = instance.run("run", "--gpus", "8", "--", "true")
    assert refused.returncode == 125
    assert "slurm/gpu/a100 has 2 GPUs a node, 8 needed" in refused.stderr


def test_a_job_that_is_queued_again_there_goes_on_from_its_checkpoint(
    instance: TestInstance, slurm: SlurmCluster
) -> None:
    """One that is cancelled there goes on, too: see test_slurm_copies.py."""
    enough = instance.work / "enough"
    (instance.work / "counter.py").write_text(COUNTER)
    words = ["--checkpoint", "step-*.txt", "--artifacts", "result.txt"]
    command = ["--", "python3", "counter.py", str(enough)]
    job = instance.ok("run", "-d", "--provider", "slurm", *words, *command).strip()
    wait_until(lambda: instance.json("show", job)["checkpoints"], what="a checkpoint")
    slurm.call("scontrol", "requeue", reference(instance, job))
    wait_until(lambda: len(instance.job(job).attempts) == 2, what="another attempt")
    wait_until(
        lambda: "from" in instance.run("logs", job).stdout, what="it to run again"
    )
    enough.touch()
    found = instance.wait(job)
    assert found.state == "completed"
    first, second = instance.json("show", job)["attempts"]
    assert first["reason"] == "preempted"
    assert second["resumed_from"]
    began = int(instance.ok("logs", job).split()[1])
    assert began >= 20, "it should not have started from the beginning"
    (left,) = instance.json("artifacts", "list", job)["items"]
    assert (left["path"], left["size"]) == ("result.txt", 4)


def test_a_hard_budget_ends_what_runs_there_with_a_checkpoint(
    instance: TestInstance,
) -> None:
    check_hard_budget(instance, "--provider", "slurm")


def test_a_killed_server_finds_its_jobs_again(instance: TestInstance) -> None:
    enough = instance.work / "enough"
    waits = f"echo here; while [ ! -e {enough} ]; do sleep 0.1; done; echo done"
    jobs = [
        instance.ok("run", "-d", "--provider", "slurm", "--", "sh", "-c", waits).strip()
        for _ in range(3)
    ]
    reference(instance, jobs[0])
    instance.kill("server")
    enough.touch()
    instance.ok("up")
    for job in jobs:
        assert instance.wait(job).state == "completed"
        assert instance.ok("logs", job) == "here\ndone\n"
        assert len(instance.json("show", job)["attempts"]) == 1


def test_a_job_whose_provider_is_not_configured_any_more_can_be_cancelled(
    instance: TestInstance,
) -> None:
    job = instance.ok("run", "-d", "--provider", "slurm", "--", "sleep", "600").strip()
    instance.wait(job, "running")
    instance.kill("server")
    instance.home.settings.write_text("")
    instance.ok("up")
    assert instance.job(job).state == "running"
    instance.ok("cancel", job)
    assert instance.wait(job).state == "cancelled"
    assert (
        "not configured any more"
        in instance.json("show", job)["attempts"][0]["message"]
    )


# What becomes of a call of `sbatch`, of which {said} tells that it came.
_UNANSWERED = {
    "the reply is lost": (
        '/usr/bin/sbatch "$@" >/dev/null; touch {said};'
        " echo 'sbatch: error: Zero Bytes were transmitted or received' >&2"
    ),
    "it was never asked": (
        "touch {said}; echo 'error: Unable to contact slurm controller' >&2"
    ),
    "it hangs": '/usr/bin/sbatch "$@" >/dev/null; touch {said}; exec sleep 600',
    "the server is killed": (
        '/usr/bin/sbatch "$@" >/dev/null; touch {said}; exec sleep 600'
    ),
}


@pytest.mark.timeout(300)  # four faults, one after the other
def test_a_submission_that_was_never_answered_is_one_job(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """`sbatch` is carried out (or not), and what it says never comes back; the next one
    is as it should be.
    """
    with make_instance(PATH=f"{tmp_path}:{os.environ['PATH']}") as instance:
        instance.home.create()
        instance.home.settings.write_text(settings(slurm, timeout_s=2))
        instance.ok("up")
        for fault, answer in _UNANSWERED.items():
            check_one_job(instance, tmp_path, fault, answer)


def check_one_job(
    instance: TestInstance, folder: Path, fault: str, answer: str
) -> None:
    """A job whose first `sbatch` has this answer runs once."""
    folder = folder / fault.replace(" ", "-")
    folder.mkdir()
    said = folder / "said"
    sbatch = folder.parent / "sbatch"
    new = folder / "sbatch"
    new.write_text(
        f"#!/bin/sh\nif mkdir {folder}/first 2>/dev/null; then"
        f" {answer.format(said=said)}; exit 1; fi\n"
        'exec /usr/bin/sbatch "$@"\n'
    )
    new.chmod(0o755)
    new.rename(sbatch)
    ran = folder / "ran"
    program = ("sh", "-c", f"echo ran >> {ran}; echo done")
    job = instance.ok("run", "-d", "--provider", "slurm", "--", *program).strip()
    wait_until(said.exists, what=f"the submission ({fault})")
    if fault == "the server is killed":
        instance.kill("server")
        instance.ok("up")
    found = instance.wait(job)
    assert (found.state, len(found.attempts)) == ("completed", 1), (fault, found)
    assert ran.read_text() == "ran\n", fault
    assert instance.ok("logs", job) == "done\n", fault


def test_jobs_that_come_together_run_once_though_the_server_is_killed(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The first array's answer never comes back: each of its jobs is found, and none is
    sent again.
    """
    first = tmp_path / "first"
    reached = tmp_path / "reached"
    lost = f'/usr/bin/sbatch "$@" >/dev/null; touch {reached}; exec sleep 600'
    (tmp_path / "sbatch").write_text(
        f'#!/bin/sh\ncase "$*" in *--array=*) if mkdir {first} 2>/dev/null; then'
        f' {lost}; fi ;; esac\nexec /usr/bin/sbatch "$@"\n'
    )
    (tmp_path / "sbatch").chmod(0o755)
    with make_instance(PATH=f"{tmp_path}:{os.environ['PATH']}") as instance:
        instance.home.create()
        instance.home.settings.write_text(settings(slurm, max_pending=_TOGETHER))
        instance.ok("up")
        specs = [
            {
                "name": "many",
                "command": ["sh", "-c", f"echo {n} >> ran; echo {n}; exit {n % 2}"],
                "provider": "slurm",
                "workdir": str(instance.work),
            }
            for n in range(_TOGETHER)
        ]
        (instance.work / "many.json").write_text(json.dumps(specs))
        jobs = [
            word
            for word in instance.ok("submit", str(instance.work / "many.json")).split()
            if word.startswith("job_")
        ]
        assert len(jobs) == _TOGETHER
        wait_until(reached.exists, what="the first array")
        instance.kill("server")
        instance.ok("up")
        for number, job in enumerate(jobs):
            assert instance.wait(job, timeout=100).state == (
                "failed" if number % 2 else "completed"
            )
        for number in (0, 7, _TOGETHER - 1):
            assert instance.ok("logs", jobs[number]) == f"{number}\n"
            assert len(instance.json("show", jobs[number])["attempts"]) == 1
        assert sorted(map(int, (instance.work / "ran").read_text().split())) == list(
            range(_TOGETHER)
        )


def test_an_array_is_an_array_there_too(instance: TestInstance) -> None:
    program = "echo {i} $GPUYARD_ARRAY_INDEX; exit $(({i} == 7))"
    words = ("--array", "3-8", "--provider", "slurm", "--name", "sweep")
    assert instance.run("run", *words, "--", "sh", "-c", program).returncode == 1
    tasks = instance.json("jobs", "--array", "sweep")["items"]
    states = {task["array_index"]: task["state"] for task in tasks}
    assert states == {i: "failed" if i == 7 else "completed" for i in range(3, 9)}
    for index in states:
        assert instance.ok("logs", f"sweep_{index}") == f"{index} {index}\n"
    theirs = {task["provider_ref"].partition("_")[0] for task in tasks}
    assert len(theirs) < len(tasks)


def test_what_waits_there_says_why_in_the_queues_words(
    instance: TestInstance, slurm: SlurmCluster
) -> None:
    jobs = [
        instance.ok("run", "-d", "--gpus", "2", "--", "sleep", "600").strip()
        for _ in range(5)
    ]
    waiting = jobs[-1]
    wait_until(
        lambda: "waits in the queue of slurm" in instance.run("why", waiting).stdout,
        what="it to wait",
    )
    slurm.call("scontrol", "hold", reference(instance, waiting))
    wait_until(
        lambda: "JobHeld" in instance.run("why", waiting).stdout, what="the reason"
    )
    assert slurm.call(
        "squeue", "-h", "-j", reference(instance, waiting), "-o", "%r"
    ).strip() in instance.ok("why", waiting)
    instance.ok("cancel", *jobs)
    for job in jobs:
        assert instance.wait(job).state == "cancelled"
    wait_until(
        lambda: not slurm.call("squeue", "-h").strip(), what="Slurm's queue to be empty"
    )


def test_who_waits_there_is_taken_back_as_soon_as_there_is_room_here(
    instance: TestInstance, slurm: SlurmCluster
) -> None:
    slurm.call(
        "sbatch",
        "--nodes=4",
        "--exclusive",
        "--output=/dev/null",
        "--wrap",
        "sleep 600",
    )
    (node,) = wait_until(lambda: instance.json("nodes")["items"], what="the node here")
    end = instance.work / "end"
    cores = f"{node['cpus']:g}"
    waits = f"while [ ! -e {end} ]; do sleep 0.1; done"
    here = instance.ok(
        "run", "-d", "--provider", "local", "--cpus", cores, "--", "sh", "-c", waits
    ).strip()
    instance.wait(here, "running")
    either = instance.ok("run", "-d", "--", "echo", "ran here").strip()
    wait_until(
        lambda: "waits in the queue of slurm" in instance.run("why", either).stdout,
        what="it to wait there",
    )
    end.touch()
    assert instance.wait(either).state == "completed"
    assert instance.ok("logs", either) == "ran here\n"
    first, second = instance.json("show", either)["attempts"]
    assert (first["provider"], first["reason"], first["started_at"]) == (
        "slurm",
        "revoked",
        None,
    )
    assert second["provider"] == "local"
    assert first["ended_at"] <= second["created_at"], (
        "it began here when Slurm had let go of it"
    )
    assert instance.json("show", either)["warnings"] == []


def test_what_people_write_never_becomes_a_command(instance: TestInstance) -> None:
    awkward = [
        "two words",
        "it's",
        'a "b"',
        "$(touch hacked)",
        "`touch hacked`",
        "a\nb",
        "; touch hacked",
        "--x=*",
        "",
    ]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    body = {
        "name": "x'; touch hacked; '",
        "command": ["python3", "-c", code, *awkward],
        "provider": "slurm",
        "workdir": str(instance.work),
        "environment": {"ODD": "$(touch hacked)\n'\""},
    }
    path = instance.work / "a job's; spec.json"
    path.write_text(json.dumps(body))
    job = instance.ok("submit", str(path)).split()[-1]
    assert instance.wait(job).state == "completed"
    assert json.loads(instance.ok("logs", job)) == awkward
    assert not list(Path(instance.work).glob("hacked*"))
    assert not list(Path.cwd().glob("hacked*"))


def test_a_gang_is_released_as_one_when_a_node_dies(
    instance: TestInstance, slurm: SlurmCluster
) -> None:
    enough = instance.work / "enough"
    waits = (
        f"echo rank $NODE_RANK of $NNODES; while [ ! -e {enough} ]; do sleep 0.1; done"
    )
    body = {
        "name": "gang",
        "command": ["sh", "-c", waits],
        "provider": "slurm",
        "workdir": str(instance.work),
        "retry_count": 1,
        "resources": {"nodes": 2, "gpus": 2},
    }
    (instance.work / "gang.json").write_text(json.dumps(body))
    job = instance.ok("submit", str(instance.work / "gang.json")).split()[-1]
    wait_until(
        lambda: instance.run("logs", job).stdout.count("rank") == 2, what="both shares"
    )
    assert sorted(instance.ok("logs", job).splitlines()) == [
        "rank 0 of 2",
        "rank 1 of 2",
    ]
    host = instance.json("show", job)["node"]
    other = "node2" if host == "node1" else "node1"
    slurm.kill_with_all(other)
    try:
        wait_until(
            lambda: len(instance.job(job).attempts) == 2,
            100,
            "another attempt",
        )
        enough.touch()
        assert instance.wait(job, timeout=100).state == "completed"
        assert len(instance.json("show", job)["attempts"]) == 2
    finally:
        slurm.start_node(other)


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_every_share_of_a_gang_gets_the_checkpoint_signal_and_runs_on(
    instance: TestInstance, name: str
) -> None:
    code = (
        f"import os, signal, sys, time\nsignal.signal(signal.SIG{name}, lambda *_:"
        " open('saved-' + os.environ['NODE_RANK'], 'w').write('x'))\nwhile not"
        " (os.path.exists('saved-0') and os.path.exists('saved-1')):"
        " time.sleep(0.1)\nprint('done')"
    )
    body = {
        "name": "gang",
        "command": ["python3", "-c", code],
        "provider": "slurm",
        "workdir": str(instance.work),
        "resources": {"nodes": 2},
        "checkpoint": {"signal": name, "every_s": 0.2},
    }
    (instance.work / "gang.json").write_text(json.dumps(body))
    job = instance.ok("submit", str(instance.work / "gang.json")).split()[-1]
    assert instance.wait(job).state == "completed"
    assert instance.ok("logs", job) == "done\ndone\n"


def test_wrong_settings_are_named(slurm: SlurmCluster) -> None:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(settings(slurm, partitoin="gpu"))
        done = made.run("up")
        assert done.returncode != 0
        assert "providers.slurm.partitoin" in done.stderr
        made.home.settings.write_text(
            settings(
                slurm, rest="unix:///run/rest.sock", sbatch_options=["--exclusive"]
            )
        )
        assert "providers.slurm.sbatch_options" in made.run("up").stderr
        made.home.settings.write_text("[providers.slrum]\n")
        assert "there is no provider 'slrum'" in made.run("up").stderr


def test_a_instance_that_asks_slurmrestd_keeps_its_token_to_itself(
    slurm_rest: RestCluster,
) -> None:
    with make_instance() as made:
        made.home.create()
        made.home.settings.write_text(
            f'[providers.slurm]\nrest = "{slurm_rest.unix}"\npoll_s = 0.3\n'
        )
        done = made.run(
            "run",
            "--provider",
            "slurm",
            "--",
            "sh",
            "-c",
            "env; echo on $SLURMD_NODENAME",
        )
        assert done.returncode == 0, done.stderr
        assert "on node" in done.stdout
        assert slurm_rest.token not in done.stdout
        assert "slurmrestd is not asked for accounts" in made.ok("providers")
        for path in made.home.root.rglob("*"):
            assert (
                not path.is_file() or slurm_rest.token.encode() not in path.read_bytes()
            ), path
