"""The fake cluster runs Jobs and pods as a real one does."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.support.conftest import (
    CPU,
    GPUS,
    Client,
    gone,
    in_phase,
    pods_of,
    said,
    with_condition,
)
from tests.support.kubernetes import Cluster
from tests.support.kubernetes.manifests import job, pod
from tests.support.kubernetes.objects import Object, condition
from tests.support.wait import wait_until

Connect = Callable[..., Client]


def test_a_job_runs_and_its_log_is_read(cluster: Cluster, kube: Client) -> None:
    kube.create(job("hello", "echo out; echo err >&2; printf unfinished"))
    status = with_condition(cluster, "hello", "Complete")
    assert (status["succeeded"], status.get("active")) == (1, None)
    (found,) = kube.do(
        kube.core.list_namespaced_pod("default", label_selector="job-name=hello")
    ).items
    assert found.metadata.name.startswith("hello-")
    assert found.status.phase == "Succeeded"
    ended = found.status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (0, "Completed")
    assert kube.log(found.metadata.name) == "out\nerr\nunfinished"
    assert {"Scheduled", "Pulled", "Created", "Started"} <= set(
        said(cluster, found.metadata.name)
    )
    assert (
        said(cluster, "hello")["SuccessfulCreate"]
        == f"Created pod: {found.metadata.name}"
    )


def test_a_failed_job_gets_its_pods_and_the_reason(
    cluster: Cluster, kube: Client
) -> None:
    kube.create(job("fails", "exit 3", backoffLimit=1))
    status = with_condition(cluster, "fails", "Failed")
    assert status["failed"] == 2
    assert status["conditions"][-1]["reason"] == "BackoffLimitExceeded"
    codes = [
        each["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for each in pods_of(cluster, "fails")
    ]
    assert codes == [3, 3]


def test_indexed_jobs_know_their_index(cluster: Cluster, kube: Client) -> None:
    manifest = job(
        "ranks",
        "echo $JOB_COMPLETION_INDEX $(hostname)",
        completions=3,
        parallelism=2,
        completionMode="Indexed",
    )
    kube.create(manifest)
    assert with_condition(cluster, "ranks", "Complete")["completedIndexes"] == "0-2"
    pods = pods_of(cluster, "ranks")
    index = "batch.kubernetes.io/job-completion-index"
    assert sorted(each["metadata"]["labels"][index] for each in pods) == ["0", "1", "2"]
    assert sorted(kube.log(each["metadata"]["name"]) for each in pods) == [
        f"{i} ranks-{i}\n" for i in range(3)
    ]
    assert all(
        each["metadata"]["name"].startswith(
            f"ranks-{each['metadata']['labels'][index]}-"
        )
        for each in pods
    )


@pytest.mark.parametrize(
    ("action", "failed", "reason"),
    [("FailJob", 1, "PodFailurePolicy"), ("Count", 2, "BackoffLimitExceeded")],
)
def test_the_failure_policy_judges_exit_codes(
    cluster: Cluster, kube: Client, action: str, failed: int, reason: str
) -> None:
    rules = [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]
    name = f"policy-{action.lower()}"
    kube.create(job(name, "exit 42", backoffLimit=1, podFailurePolicy={"rules": rules}))
    status = with_condition(cluster, name, "Failed")
    assert status["failed"] == failed
    assert status["conditions"][-1]["reason"] == reason
    if action == "FailJob":
        assert condition({"status": status}, "FailureTarget")
        assert (
            "failed with exit code 42 matching FailJob rule at index 0"
            in status["conditions"][-1]["message"]
        )


def test_deadlines_of_job_and_pod(cluster: Cluster, kube: Client) -> None:
    kube.create(job("late", "sleep 60", activeDeadlineSeconds=1))
    kube.create(pod("late-pod", "sleep 60", activeDeadlineSeconds=1))
    status = with_condition(cluster, "late", "Failed")
    assert status["conditions"][-1]["reason"] == "DeadlineExceeded"
    found = in_phase(cluster, "late-pod", "Failed")
    assert found["status"]["reason"] == "DeadlineExceeded"


def test_suspend_and_resume(cluster: Cluster, kube: Client) -> None:
    kube.create(job("paused", "sleep 1", suspend=True))
    with_condition(cluster, "paused", "Suspended")
    assert not pods_of(cluster, "paused")
    kube.do(
        kube.batch.patch_namespaced_job(
            "paused", "default", {"spec": {"suspend": False}}
        )
    )
    wait_until(lambda: pods_of(cluster, "paused"))
    kube.do(
        kube.batch.patch_namespaced_job(
            "paused", "default", {"spec": {"suspend": True}}
        )
    )
    status = with_condition(cluster, "paused", "Suspended")
    assert not status.get("failed")
    wait_until(lambda: not pods_of(cluster, "paused"))
    kube.do(
        kube.batch.patch_namespaced_job(
            "paused", "default", {"spec": {"suspend": False}}
        )
    )
    with_condition(cluster, "paused", "Complete")


def test_a_finished_job_is_removed_after_its_time(
    cluster: Cluster, kube: Client
) -> None:
    kube.create(job("short-lived", ttlSecondsAfterFinished=0))
    gone(cluster, "jobs", "short-lived")
    wait_until(lambda: not pods_of(cluster, "short-lived"))


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan", None])
def test_deleting_a_job_with_each_policy(
    cluster: Cluster, kube: Client, policy: str | None
) -> None:
    """Without a policy batch/v1 leaves the pods, as ever."""
    name = f"deleted-{str(policy).lower()}"
    kube.create(job(name, "exec sleep 60"))
    wait_until(lambda: pods_of(cluster, name))
    called = pods_of(cluster, name)[0]["metadata"]["name"]
    in_phase(cluster, called, "Running")
    options = {"propagation_policy": policy} if policy else {}
    kube.do(kube.batch.delete_namespaced_job(name, "default", **options))
    if policy in ("Background", "Foreground"):
        gone(cluster, "pods", called)
        gone(cluster, "jobs", name)
        return
    gone(cluster, "jobs", name)
    assert not in_phase(cluster, called, "Running")["metadata"].get("ownerReferences")
    kube.do(kube.core.delete_namespaced_pod(called, "default", grace_period_seconds=0))


def test_a_pod_is_asked_before_it_is_killed(cluster: Cluster, kube: Client) -> None:
    kube.create(
        pod(
            "kind",
            'trap "echo bye; exit 7" TERM; echo up; while :; do sleep 0.05; done',
            terminationGracePeriodSeconds=20,
        )
    )
    kube.create(pod("deaf", "echo up; sleep 60", terminationGracePeriodSeconds=1))
    for name in ("kind", "deaf"):
        in_phase(cluster, name, "Running")
        wait_until(lambda name=name: kube.log(name))
    began = time.monotonic()
    reply = kube.do(kube.core.delete_namespaced_pod("kind", "default"))
    assert reply.metadata.deletion_timestamp
    kube.do(kube.core.delete_namespaced_pod("deaf", "default"))
    gone(cluster, "pods", "kind")
    gone(cluster, "pods", "deaf")
    assert time.monotonic() - began >= 1  # pid 1 ignores what it does not handle
    assert said(cluster, "kind")["Killing"] == "Stopping container main"


def test_environment_and_expansion(cluster: Cluster, kube: Client) -> None:
    cluster.create(
        {
            "kind": "Secret",
            "metadata": {"name": "keys"},
            "stringData": {"token": "s3cret"},
        }
    )
    cluster.create(
        {
            "kind": "ConfigMap",
            "metadata": {"name": "settings"},
            "data": {"LEVEL": "high"},
        }
    )
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2"},
        {"name": "C", "value": "$$(A)$(NONE)"},
        {
            "name": "TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}},
        },
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    container = {
        "env": env,
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "command": ["sh", "-c"],
        "args": ['echo "$B|$C|$TOKEN|$NODE|$LEVEL|$(A)|$(pwd)|$$"; echo $IP'],
        "workingDir": "/nowhere/yet",
    }
    kube.create(pod("variables", container=container))
    in_phase(cluster, "variables", "Succeeded")
    first, second = kube.log("variables").splitlines()
    assert first == "12|$(A)$(NONE)|s3cret|cpu-1|high|1|/nowhere/yet|$"
    assert second.startswith("10.244.")
    assert not Path("/nowhere").exists()


def test_volumes(cluster: Cluster, kube: Client, tmp_path: Path) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    cluster.create(
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}, "spec": spec}
    )
    cluster.create(
        {
            "kind": "Secret",
            "metadata": {"name": "files"},
            "stringData": {"key": "value"},
        }
    )
    volumes = [
        {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
        {"name": "empty", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
        {"name": "secret", "secret": {"secretName": "files", "defaultMode": 0o400}},
    ]
    mounts = [
        {"name": "disk", "mountPath": "/data/disk"},
        {"name": "empty", "mountPath": "/dev/shm"},
        {"name": "host", "mountPath": "/mnt/host"},
        {"name": "secret", "mountPath": "/etc/keys", "readOnly": True},
    ]
    script = (
        "echo kept > /data/disk/file; echo seen > /mnt/host/file; cat /etc/keys/key;"
        " touch /dev/shm/x /etc/keys/no"
    )
    kube.create(
        pod("mounts", script, container={"volumeMounts": mounts}, volumes=volumes)
    )
    in_phase(cluster, "mounts", "Failed")
    assert kube.log("mounts").startswith("value")
    assert "Read-only file system" in kube.log("mounts")
    assert (cluster.claim("disk") / "file").read_text() == "kept\n"
    assert (tmp_path / "file").read_text() == "seen\n"
    assert str(cluster.folder) not in Path("/proc/mounts").read_text()
    assert not Path("/data/disk").exists()


def test_what_a_log_can_be_asked_for(cluster: Cluster, kube: Client) -> None:
    kube.create(pod("chatty", "for i in 1 2 3 4; do echo line $i; sleep 0.2; done"))
    in_phase(cluster, "chatty", "Running", "Succeeded")
    assert kube.log("chatty", follow=True) == "".join(
        f"line {i}\n" for i in range(1, 5)
    )
    assert kube.log("chatty", tail_lines=1) == "line 4\n"
    assert kube.log("chatty", limit_bytes=3) == "lin"
    stamp, _, text = (
        kube.log("chatty", timestamps=True, tail_lines=2).splitlines()[0].partition(" ")
    )
    assert (text, len(stamp)) == ("line 3", len("2024-01-01T00:00:00.000000000+08:00"))
    assert kube.log("chatty", since_seconds=1000).count("line") == 4
    reply = kube.do(
        kube.get("/api/v1/namespaces/default/pods/chatty/log", sinceTime=stamp)
    )
    assert reply.endswith("line 3\nline 4\n"), "all of that second"


def test_images_that_do_not_exist(cluster: Cluster, kube: Client) -> None:
    kube.create(pod("no-image", container={"image": "nobody/nothing:9"}))

    def reason() -> str:
        statuses = cluster.get("pods", "no-image")["status"].get(
            "containerStatuses"
        ) or [{}]  # type: ignore[index]
        return statuses[0].get("state", {}).get("waiting", {}).get("reason", "")

    wait_until(lambda: reason() == "ImagePullBackOff")
    messages = [
        each["message"]
        for each in cluster.objects("events")
        if each["reason"] == "Failed"
    ]
    assert any("docker.io/nobody/nothing:9: not found" in each for each in messages)
    error = kube.refused(kube.core.read_namespaced_pod_log("no-image", "default"))
    assert error.status == 400
    assert (
        'container \\"main\\" in pod \\"no-image\\" is waiting to start: trying and'
        " failing" in str(error.body)
    )
    cluster.add_image("nobody/nothing:9")
    in_phase(cluster, "no-image", "Succeeded")


def test_containers_that_cannot_be_made(cluster: Cluster, kube: Client) -> None:
    kube.create(pod("no-command", container={"command": ["nosuch"]}))
    ended = in_phase(cluster, "no-command", "Failed")["status"]["containerStatuses"][0][
        "state"
    ]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert 'exec: "nosuch": executable file not found in $PATH' in ended["message"]
    env = [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "later", "key": "t"}}}]
    kube.create(pod("no-secret", "echo $T", container={"env": env}))
    wait_until(
        lambda: (
            said(cluster, "no-secret").get("Failed")
            == 'Error: secret "later" not found'
        )
    )
    cluster.create(
        {"kind": "Secret", "metadata": {"name": "later"}, "stringData": {"t": "there"}}
    )
    in_phase(cluster, "no-secret", "Succeeded")
    assert kube.log("no-secret") == "there\n"


def test_memory_is_limited(cluster: Cluster, kube: Client) -> None:
    script = "python3 -c 'x = bytearray(200 << 20); import time; time.sleep(30)'"
    kube.create(
        pod("greedy", script, container={"resources": {"limits": {"memory": "64Mi"}}})
    )
    ended = in_phase(cluster, "greedy", "Failed")["status"]["containerStatuses"][0][
        "state"
    ]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_termination_messages_init_containers_and_restarts(
    cluster: Cluster, kube: Client
) -> None:
    first = {
        "name": "first",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "echo ready > /x/f"],
        "volumeMounts": [{"name": "x", "mountPath": "/x"}],
    }
    kube.create(
        pod(
            "staged",
            "cat /x/f; echo why > /dev/termination-log; exit 1",
            initContainers=[first],
            volumes=[{"name": "x", "emptyDir": {}}],
            container={"volumeMounts": [{"name": "x", "mountPath": "/x"}]},
        )
    )
    status = in_phase(cluster, "staged", "Failed")["status"]
    assert (
        status["initContainerStatuses"][0]["state"]["terminated"]["reason"]
        == "Completed"
    )
    assert status["containerStatuses"][0]["state"]["terminated"]["message"] == "why\n"
    kube.create(pod("crashing", "exit 1", restartPolicy="Always"))

    def restarts() -> int:
        found: Object = cluster.get("pods", "crashing") or {}
        return (found["status"].get("containerStatuses") or [{}])[0].get(
            "restartCount", 0
        )

    wait_until(lambda: restarts() >= 2)
    kube.do(kube.core.delete_namespaced_pod("crashing", "default"))


def test_the_cluster_outlives_its_clients_and_leaves_nothing(connect: Connect) -> None:
    with Cluster([CPU, GPUS]) as cluster:
        first = connect(cluster)
        first.create(pod("stays", "sleep 1234"))
        in_phase(cluster, "stays", "Running")
        second = connect(cluster)
        assert (
            second.do(second.core.read_namespaced_pod("stays", "default")).status.phase
            == "Running"
        )
        folder = cluster.folder
    assert not folder.exists()
    left = [
        each
        for each in Path("/proc").glob("[0-9]*/cmdline")
        if b"sleep\x001234" in _read(each)
    ]
    assert not left


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_newer_cluster_fails_a_job_only_when_its_pods_have_ended(
    connect: Connect,
) -> None:
    with Cluster([CPU], version="1.31") as cluster:
        kube = connect(cluster)
        assert kube.do(kube.version.get_code()).git_version == "v1.31.0"
        kube.create(job("slow-end", "sleep 60", activeDeadlineSeconds=1))
        with_condition(cluster, "slow-end", "FailureTarget")
        assert not condition(cluster.get("jobs", "slow-end") or {}, "Failed")
        with_condition(cluster, "slow-end", "Failed")
