"""An instance in front of a Kubernetes cluster (a full fake, whose containers are
processes).
"""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.domain.images import choose_image
from tests.support.carried_flow import check_carried_flow
from tests.support.faults import Faults
from tests.support.instance import TestInstance, make_instance
from tests.support.jumps import check_time_limits
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.access import Rule
from tests.support.over_budget import check_hard_budget
from tests.support.same import run_here_and_there
from tests.support.wait import wait_until

IMAGE = "python:3.11-slim"
# Of kills: `make soak` asks for more.
ROUNDS = int(os.environ.get("GPUYARD_KILL_ROUNDS", "1"))
EVENT_FILE = Path(__file__).parents[1] / "unit/insight/event_files/tensorboardX"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    nodes = [
        Node("a1", gpus=2),
        Node("a2", gpus=2),
        Node(
            "t1",
            gpus=1,
            gpu_product="Tesla-T4",
            gpu_memory_mib=15360,
            instance_type="small",
        ),
    ]
    with Cluster(nodes) as cluster:
        spec = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        cluster.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "flag"},
                "spec": spec,
            }
        )
        yield cluster


@pytest.fixture
def instance(cluster: Cluster, tmp_path: Path) -> Iterator[TestInstance]:
    with in_front_of(cluster, tmp_path) as made:
        yield made


@contextmanager
def in_front_of(
    cluster: Cluster, tmp_path: Path, token: str = "", **environment: str
) -> Iterator[TestInstance]:
    """An instance that knows the cluster; without a token, its administrator."""
    with make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.1", **environment) as made:
        made.home.create()
        config = cluster.kubeconfig(tmp_path / "kubeconfig", token)
        made.home.settings.write_text(
            f"""
[providers.kubernetes]
kubeconfig = "{config}"
namespace = "default"
poll_s = 0.1
node_lost_s = 0.5
volumes = {{ "/flag" = "pvc:flag" }}
prices = {{ small = 0.5, "NVIDIA-A100-SXM4-40GB" = 3 }}
"""
        )
        made.ok("up")
        yield made


def test_a_clock_that_jumps_an_hour_moves_no_time_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    faults = Faults(tmp_path)

    def set_clock(seconds: float) -> None:
        """Of this host by so much, and of the cluster by twice as much."""
        faults.clock_is_off(seconds)
        cluster.faults.shift_clock(2 * seconds)

    def submit(*command: str, **fields: object) -> str:
        return instance.submit(
            list(command), image=IMAGE, provider="kubernetes", **fields
        )

    with in_front_of(cluster, tmp_path, **faults.environment) as instance:
        check_time_limits(instance, set_clock, submit)


def test_one_spec_runs_unchanged_here_and_there(
    instance: TestInstance, cluster: Cluster
) -> None:
    cluster.add_image(choose_image(frozenset(), gpu=False).image.reference)
    _, there = run_here_and_there(instance, "kubernetes")
    assert "was chosen" in there["warnings"][0]
    assert there["node"] in ("a1", "a2", "t1")
    assert there["cost"]["basis"] == "offer"


def test_the_cheapest_that_suits_is_taken_and_the_estimate_says_so_before(
    instance: TestInstance,
) -> None:
    words = ["--gpus", "1", "--image", IMAGE]
    found = instance.json("estimate", *words, "--strategy", "cost")
    best = found["items"][0]
    assert (best["name"], best["per_hour"]) == ("kubernetes/tesla-t4-small", 0.5)
    large = instance.json("estimate", *words, "--gpu-memory", "30GB")["items"]
    unsuited = next(place for place in large if place["name"] == best["name"])
    assert unsuited["reasons"] == ["has GPUs with 15 GB of memory, 30 GB needed"]
    told = instance.ok("estimate", *words)
    assert "kubernetes/nvidia-a100-sxm4-40gb-test.large" in told
    done = instance.run(
        "run",
        *words,
        "--strategy",
        "cost",
        "--",
        "sh",
        "-c",
        "echo $NVIDIA_VISIBLE_DEVICES",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("GPU-")
    refused = instance.run("run", *words, "--max-price", "0.1", "--", "true")
    assert refused.returncode == 125
    assert "max_price is 0.1" in refused.stderr


def test_a_killed_server_finds_its_jobs_again(
    instance: TestInstance, cluster: Cluster
) -> None:
    enough = cluster.claim("flag") / "enough"
    waits = "echo here; while [ ! -e /flag/enough ]; do sleep 0.1; done; echo done"
    words = ("--provider", "kubernetes", "--image", IMAGE, "--", "sh", "-c", waits)
    jobs = [instance.ok("run", "-d", *words).strip() for _ in range(4)]
    instance.wait(jobs[0], "running")
    instance.kill("server")
    enough.touch()
    instance.ok("up")
    for job in jobs:
        assert instance.wait(job).state == "completed"
        assert instance.ok("logs", job) == "here\ndone\n"
        assert len(instance.json("show", job)["attempts"]) == 1
    assert wait_until(
        lambda: not cluster.objects("jobs") and not cluster.objects("secrets"),
        what="it to be tidy",
    )


def test_a_server_killed_while_it_submits_makes_one_job(
    instance: TestInstance, cluster: Cluster
) -> None:
    """Before the reply to its submission has come, and after that."""
    words = ("run", "-d", "--provider", "kubernetes", "--image", IMAGE, "--")
    fault = cluster.faults.hang("POST", "/jobs$")
    before = instance.ok(*words, "echo", "once").strip()
    wait_until(lambda: fault.met, what="the submission")
    check_one_job_after_a_kill(instance, cluster, before)
    after = instance.ok(*words, "echo", "once").strip()
    wait_until(
        lambda: cluster.objects("jobs") or instance.job(after).state == "completed",
        what="the Job to be there",
    )
    check_one_job_after_a_kill(instance, cluster, after)


def check_one_job_after_a_kill(
    instance: TestInstance, cluster: Cluster, job: str
) -> None:
    """The server is killed, and the job runs once."""
    instance.kill("server")
    cluster.faults.lift()
    instance.ok("up")
    found = instance.wait(job)
    assert (found.state, len(found.attempts)) == ("completed", 1), found
    assert instance.ok("logs", job) == "once\n"
    # What follows is to see the next one.
    wait_until(lambda: not cluster.objects("jobs"), what="the Job to go")


def test_an_evicted_job_and_one_whose_node_died_run_again(
    instance: TestInstance, cluster: Cluster
) -> None:
    enough = cluster.claim("flag") / "enough"
    waits = "while [ ! -e /flag/enough ]; do sleep 0.1; done"
    words = (
        "--provider",
        "kubernetes",
        "--image",
        IMAGE,
        "--retries",
        "1",
        "--",
        "sh",
        "-c",
        waits,
    )
    jobs = [instance.ok("run", "-d", *words).strip() for _ in range(2)]
    for job in jobs:
        instance.wait(job, "running")
    pods = {
        pod["metadata"]["labels"]["gpuyard.dev/job"]: pod
        for pod in cluster.objects("pods")
    }
    cluster.evict(pods[jobs[0]]["metadata"]["name"])
    wait_until(
        lambda: len(instance.job(jobs[0]).attempts) == 2,
        what="the evicted one to be tried again",
    )
    cluster.lose_node(pods[jobs[1]]["spec"]["nodeName"])
    wait_until(
        lambda: len(instance.job(jobs[1]).attempts) == 2,
        what="the lost one to be tried again",
    )
    enough.touch()
    reasons = []
    for job in jobs:
        assert instance.wait(job).state == "completed"
        reasons.append(instance.json("show", job)["attempts"][0]["reason"])
    assert reasons[0] == "preempted"
    assert reasons[1] in ("node_lost", "preempted")


def test_output_is_whole_whatever_starts_again(
    instance: TestInstance, cluster: Cluster
) -> None:
    flag = cluster.claim("flag")
    code = (
        "for i in 1 2 3; do while [ ! -e /flag/$i ]; do sleep 0.05; done; echo $i; done"
    )
    words = ("--provider", "kubernetes", "--image", IMAGE, "--", "sh", "-c", code)
    job = instance.ok("run", "-d", *words).strip()
    (flag / "1").touch()
    with instance.popen("logs", "-f", job) as follower:
        assert follower.stdout
        assert follower.stdout.readline() == "1\n"
        away = cluster.faults.cut(times=None)
        cluster.faults.reset_connections()
        (flag / "2").touch()
        wait_until(lambda: away.met > 3)
        away.release()
        assert follower.stdout.readline() == "2\n"
        instance.kill("server")
        cluster.rotate_log(cluster.objects("pods")[0]["metadata"]["name"])
        (flag / "3").touch()
        instance.ok("up")
        assert follower.stdout.read() == "3\n"
        assert follower.wait() == 0
    assert instance.ok("logs", job) == "1\n2\n3\n"


def test_why_is_what_the_cluster_says_and_a_full_one_is_told_apart_from_an_impossible_wish(
    instance: TestInstance, cluster: Cluster
) -> None:
    words = (
        "--provider",
        "kubernetes",
        "--image",
        IMAGE,
        "--gpus",
        "2",
        "--",
        "sleep",
        "600",
    )
    jobs = [instance.ok("run", "-d", *words).strip() for _ in range(3)]
    for job in jobs[:2]:
        instance.wait(job, "running")
    said = wait_until(
        lambda: [
            event["message"]
            for event in cluster.objects("events")
            if event["reason"] == "FailedScheduling"
        ],
    )
    wait_until(
        lambda: said[-1] in instance.ok("why", jobs[2]), what="the cluster's own words"
    )
    instance.ok("cancel", *jobs)
    for job in jobs:
        assert instance.wait(job).state == "cancelled"
    refused = instance.run(
        "run", "--provider", "kubernetes", "--image", IMAGE, "--gpus", "3", "--", "true"
    )
    assert "has 2 GPUs a node, 3 needed" in refused.stderr
    assert wait_until(lambda: not cluster.gpus_held(), what="all GPUs to be free")


def test_a_wrong_image_and_a_missing_one(instance: TestInstance) -> None:
    done = instance.run(
        "run", "--provider", "kubernetes", "--image", "nobody/nothing:1", "--", "true"
    )
    assert done.returncode != 0
    assert "nobody/nothing:1" in done.stderr
    without = instance.run("run", "--provider", "kubernetes", "--", "true")
    assert "was chosen: " in without.stderr


def test_the_health_of_the_cluster_is_shown(
    instance: TestInstance, cluster: Cluster
) -> None:
    words = ("--provider", "kubernetes", "--image", IMAGE, "--")
    instance.ok("run", *words, "true")
    # An idle provider is only asked now and then.
    waits = "while [ ! -e /flag/enough ]; do sleep 0.1; done"
    running = instance.ok("run", "-d", *words, "sh", "-c", waits).strip()
    instance.wait(running, "running")

    def row() -> dict:
        return next(
            row
            for row in instance.json("providers")["items"]
            if row["name"] == "kubernetes"
        )

    found = row()
    assert (found["status"], found["success_rate_day"]) == ("healthy", 1.0)
    cluster.faults.cut(times=None)
    cluster.faults.reset_connections()
    assert wait_until(lambda: row()["status"] == "unhealthy", 120)
    events = wait_until(
        lambda: [
            event
            for event in instance.json("events")["items"]
            if event["kind"] == "provider.down"
        ],
    )
    assert events[0]["data"]["provider"] == "kubernetes"
    waiting = instance.ok("run", "-d", *words, "true").strip()
    assert not instance.job(waiting).attempts, "nothing is sent meanwhile"
    cluster.faults.lift()
    wait_until(
        lambda: any(
            event["kind"] == "provider.up" for event in instance.json("events")["items"]
        ),
    )
    (cluster.claim("flag") / "enough").touch()
    for job in (running, waiting):
        assert instance.wait(job).state == "completed"
        assert len(instance.job(job).attempts) == 1


def test_what_the_account_may_not_do_is_named_wherever_one_looks(
    cluster: Cluster, tmp_path: Path
) -> None:
    rules = [
        Rule(("*",), ("jobs", "pods", "pods/log", "secrets", "services", "events")),
        Rule(("",), ("namespaces",), ("get",)),
    ]
    token = cluster.token("gpuyard", rules)
    with in_front_of(cluster, tmp_path, token) as instance:
        words = ("--provider", "kubernetes", "--image", IMAGE, "--", "true")
        job = instance.ok("run", "-d", *words).strip()
        right = 'cannot list resource "nodes"'
        wait_until(lambda: right in instance.ok("why", job), what="the right in `why`")
        assert right in instance.ok("offers")
        assert "list nodes" in instance.ok("providers")
        checkup = instance.run("doctor")
        assert checkup.returncode == 1
        assert "its account may not list nodes" in checkup.stdout


def test_a_job_of_a_second_takes_few_requests(
    instance: TestInstance, cluster: Cluster
) -> None:
    words = ("run", "--provider", "kubernetes", "--image", IMAGE, "--")
    instance.ok(*words, "true")  # the watches and offers are there from now on
    wait_until(lambda: not cluster.objects("jobs"), what="the Job to go")

    def asked() -> int:
        # Why it waits is only asked if it waits for a second, on a busy machine.
        faults = cluster.faults
        by_time = faults.count(verb="watch") + faults.count("nodes")
        return faults.count() - by_time - faults.count("events")

    before = asked()
    instance.ok(*words, "sleep", "1")
    wait_until(lambda: not cluster.objects("jobs"), what="the Job to go")
    assert asked() - before <= 8


COUNTER = """
import os, sys, time
start = int(open(os.environ["GPUYARD_RESUME_FROM"]).read()) if "GPUYARD_RESUME_FROM" in os.environ else 0
print("from", start, open("beside.txt").read(), flush=True)
step = start
while not os.path.exists("/flag/enough"):
    step += 1
    if step % 100 == 0:
        with open("new", "w") as file:
            file.write(str(step))
        os.rename("new", "step-last.txt")
    time.sleep(0.05)
print("done", flush=True)
open("result.txt", "w").write("done")
"""


def share_a_volume(instance: TestInstance, cluster: Cluster) -> Path:
    """Give instance and cluster one; its folder on this host."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "spool"},
            "spec": spec,
        }
    )
    spool = cluster.claim("spool")
    instance.kill("server")
    settings = (
        instance.home.settings.read_text()
        + f'spool = "{spool}"\nspool_claim = "spool"\n'
    )
    instance.home.settings.write_text(settings)
    instance.ok("up")
    return spool


def test_a_workspace_goes_along_and_comes_back_and_what_it_logs_is_curves(
    instance: TestInstance, cluster: Cluster
) -> None:
    words = (
        "run",
        "--name",
        "logging",
        "--provider",
        "kubernetes",
        "--image",
        IMAGE,
        "--workspace",
        "corpus",
        "--",
        "sh",
        "-c",
    )
    refused = instance.run(*words, "true")
    assert refused.returncode == 125
    assert "has no place for workspaces" in refused.stderr
    share_a_volume(instance, cluster)
    here = instance.home.workspaces / "default" / "corpus"
    here.mkdir(parents=True)
    (here / "first").write_text("one\n")
    shutil.copy(EVENT_FILE, instance.work / "events")
    code = """
        cat $GPUYARD_WORKSPACE/first
        echo two > $GPUYARD_WORKSPACE/second
        cp events events.out.tfevents.$(date +%s).pod.1.0
        """
    assert instance.ok(*words, code) == "one\n"
    assert (here / "second").read_text() == "two\n"
    logged = instance.json("show", "logging")["progress"]
    assert logged["metrics"] == {"tensorboard/train/loss": 0.125}, logged


def test_a_pod_reads_a_dataset_from_the_shared_volume_and_cannot_change_it(
    instance: TestInstance, cluster: Cluster
) -> None:
    (instance.work / "words").write_text("to be\n")
    instance.ok("datasets", "add", "plays", "words")
    place = ("--provider", "kubernetes", "--image", IMAGE)
    words = ("run", *place, "--dataset", "plays", "--", "sh", "-c")
    refused = instance.run(*words, "true")
    assert refused.returncode == 125
    assert "has no place for datasets" in refused.stderr
    spool = share_a_volume(instance, cluster)
    code = "cd $GPUYARD_DATASET_PLAYS; cat words; touch words 2> /dev/null || echo no"
    for _ in range(2):
        assert instance.ok(*words, code) == "to be\nno\n"
    (copy,) = (spool / "datasets/copies").iterdir()
    assert (copy / "files/words").read_text() == "to be\n"
    notes = spool / "datasets/users"
    wait_until(lambda: not list(notes.iterdir()), what="the notes to go")


def test_a_command_and_a_shell_reach_a_pod(instance: TestInstance) -> None:
    place = ("--provider", "kubernetes", "--image", IMAGE)
    waits = "echo here; sleep 600"
    job = instance.ok("run", "-d", *place, "--", "sh", "-c", waits).strip()
    wait_until(lambda: "here" in instance.run("logs", job).stdout, what="it to run")
    done = instance.run("exec", job, "--", "sh", "-c", "cat; exit 3", input="words")
    assert (done.returncode, done.stdout) == (3, "words"), done.stderr
    shown = instance.run("ssh", job, "echo", "$GPUYARD_JOB_ID", input="")
    assert shown.stdout == f"{instance.json('show', job)['id']}\n", shown.stderr
    instance.ok("cancel", job)
    assert instance.wait(job).state == "cancelled"


def test_with_a_shared_volume_its_folder_goes_there_and_its_checkpoints_come_back(
    instance: TestInstance, cluster: Cluster
) -> None:
    spool = share_a_volume(instance, cluster)
    (instance.work / "counter.py").write_text(COUNTER)
    (instance.work / "beside.txt").write_text("beside")
    (instance.work / ".gitignore").write_text("large.bin\n")
    (instance.work / "large.bin").write_bytes(b"x" * 1000)
    words = (
        "--provider",
        "kubernetes",
        "--image",
        IMAGE,
        "--checkpoint",
        "step-*.txt",
        "--artifacts",
        "result.txt",
        "--",
        "python3",
        "counter.py",
    )
    job = instance.ok("run", "-d", *words).strip()
    wait_until(lambda: instance.json("show", job)["checkpoints"], what="a checkpoint")
    (attempt,) = [path for path in spool.iterdir() if path.is_dir()]
    there = {path.name for path in (attempt / "work").iterdir()}
    assert there - {"new", "step-last.txt"} == {
        ".gitignore",
        "beside.txt",
        "counter.py",
    }
    cluster.evict(cluster.objects("pods")[0]["metadata"]["name"])
    wait_until(lambda: len(instance.job(job).attempts) == 2, what="another attempt")
    wait_until(
        lambda: "from" in instance.run("logs", job).stdout, what="it to run again"
    )
    (cluster.claim("flag") / "enough").touch()
    assert instance.wait(job).state == "completed"
    words = instance.ok("logs", job).split()
    assert words[0] == "from"
    assert int(words[1]) >= 100, "it should not have started from the beginning"
    assert words[2] == "beside"
    (left,) = instance.json("artifacts", "list", job)["items"]
    assert (left["path"], left["size"]) == ("result.txt", 4)
    assert wait_until(
        lambda: not [path for path in spool.iterdir() if path.is_dir()],
        what="the folders to go",
    )
    check_hard_budget(instance, "--provider", "kubernetes", "--image", IMAGE)


def test_rounds_of_kills_lose_no_job_and_run_none_twice(
    instance: TestInstance, cluster: Cluster
) -> None:
    dice = random.Random(11)
    flag = cluster.claim("flag")
    code = "echo $GPUYARD_ATTEMPT_ID >> /flag/$GPUYARD_JOB_ID; sleep 0.3"
    jobs: list[str] = []
    for _ in range(ROUNDS):
        for _ in range(4):
            words = (
                "--provider",
                "kubernetes",
                "--image",
                IMAGE,
                "--env",
                "A=b",
                "--",
                "sh",
                "-c",
                code,
            )
            jobs.append(instance.ok("run", "-d", *words).strip())
        reached = cluster.faults.count("jobs", method="POST") + dice.randrange(4)
        wait_until(
            lambda most=reached: (
                cluster.faults.count("jobs", method="POST") >= most
                or _over(instance, jobs)
            ),
        )
        instance.kill("server")
        instance.ok("up")
    for job in jobs:
        assert instance.wait(job).state == "completed"
        (attempt,) = instance.json("show", job)["attempts"]
        assert (flag / job).read_text().split() == [attempt["id"]]
    assert wait_until(
        lambda: not cluster.objects("jobs") and not cluster.objects("secrets"),
        what="it to be tidy",
    )


def _over(instance: TestInstance, jobs: list[str]) -> bool:
    return all(instance.job(job).state == "completed" for job in jobs)


@pytest.mark.timeout(600)  # a flow is several jobs
def test_a_flow_passes_its_files_on_between_pods(
    instance: TestInstance, cluster: Cluster
) -> None:
    share_a_volume(instance, cluster)
    check_carried_flow(instance, f'provider = "kubernetes"\nimage = "{IMAGE}"')
