"""What becomes of jobs on Kubernetes when tokens expire, connections freeze, streams
break, and nodes cannot be reached.
"""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import GpuSpec, JobResult, JobStatus
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import STAY
from gpuyard.providers.kubernetes import api
from gpuyard.providers.kubernetes.provider import KubernetesProvider
from tests.integration.providers.test_kubernetes import provider
from tests.integration.providers.test_kubernetes_life import (
    as_user,
    left,
    pod_of,
    polled,
    role,
    run,
)
from tests.support.kubernetes import Cluster, Node
from tests.support.wait import eventually, wait_until

T = TypeVar("T")
FLAG = {"/flag": "pvc:flag"}
# Says a word for each file that appears, and ends after the third.
TALKS = """
    import os, time
    for name in ("one", "two", "three"):
        while not os.path.exists(f"/flag/{name}"):
            time.sleep(0.01)
        print(name, flush=True)
    """


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    nodes = [Node("one", gpus=2, cpus=8), Node("two", gpus=2, cpus=8)]
    with Cluster(nodes, bookmark_s=0.2) as cluster:
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "flag"},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        cluster.create(claim)
        yield cluster


def say(cluster: Cluster, *words: str) -> None:
    for word in words:
        (cluster.claim("flag") / word).touch()


class Listener:
    """Follows a job's output in the background."""

    def __init__(self, kubernetes: KubernetesProvider, job_id: str) -> None:
        self.heard = b""
        self._stream = kubernetes.stream_logs(job_id, lines=None, follow=True)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for part in self._stream:
            self.heard += part

    async def hears(self, text: bytes) -> None:
        await eventually(lambda: self.heard == text or self._task.done())
        assert self.heard == text

    async def to_the_end(self) -> bytes:
        await asyncio.wait_for(self._task, 60)
        return self.heard


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call again while the server does not answer, as the controller does."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return await call()
        except ProviderError as error:
            assert time.monotonic() < deadline, error
            await asyncio.sleep(0.05)


# --- credentials ---


def test_a_token_that_expires_ends_no_stream(cluster: Cluster, tmp_path: Path) -> None:
    tokens = [role(cluster, tmp_path) for _ in range(2)]

    async def work() -> tuple[JobResult, bytes]:
        kubernetes = as_user(cluster, tmp_path, tokens[0], volumes=FLAG)
        instance = Subject(kubernetes)
        try:
            job_id = await instance.submit(
                instance.job(TALKS, image="python:3.11-slim")
            )
            await polled(instance, job_id, JobStatus.RUNNING)
            listener = Listener(kubernetes, job_id)
            say(cluster, "one")
            await listener.hears(b"one\n")
            await asyncio.to_thread(cluster.expire, tokens[0])
            with pytest.raises(ProviderError, match="401"):
                await kubernetes.get_job_status(job_id)
            say(cluster, "two")
            await listener.hears(b"one\ntwo\n")
            cluster.kubeconfig(tmp_path / "kubeconfig", tokens[1])
            await insist(lambda: kubernetes.get_job_status(job_id))
            say(cluster, "three")
            heard = await listener.to_the_end()
            return await polled(instance, job_id), heard
        finally:
            await kubernetes.close()

    result, heard = asyncio.run(work())
    assert (result.status, heard) == (JobStatus.COMPLETED, b"one\ntwo\nthree\n")


def plugin(folder: Path) -> dict[str, Any]:
    """A user whose token comes from a program. It gives what `credential` says, and
    adds a line to `asked`.
    """
    script = f"echo >> {folder}/asked; cat {folder}/credential"
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": "sh", "args": ["-c", script]}}


def give(folder: Path, token: str, life_s: float) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=life_s)
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token, "expirationTimestamp": expires.isoformat()},
    }
    (folder / "credential").write_text(json.dumps(credential))


def test_a_plugin_is_asked_before_its_token_expires(
    cluster: Cluster, tmp_path: Path
) -> None:
    tokens = [role(cluster, tmp_path) for _ in range(2)]
    kubernetes = provider(cluster, tmp_path)
    cluster.kubeconfig(tmp_path / "kubeconfig", user=plugin(tmp_path))
    asked = tmp_path / "asked"

    async def work() -> None:
        give(tmp_path, tokens[0], life_s=1)
        await kubernetes.offers()
        give(tmp_path, tokens[1], life_s=3600)
        deadline = time.monotonic() + 60
        while len(asked.read_text()) < 2:
            await kubernetes.offers()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.expire, tokens[0])
        await kubernetes.offers()
        await kubernetes.close()

    asyncio.run(work())
    assert cluster.access.refused == 0, "nobody had to refuse the old one"
    assert len(asked.read_text()) == 2, "a token that is good is kept"


def test_a_token_that_is_refused_too_early_is_asked_for_again_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    tokens = [role(cluster, tmp_path) for _ in range(2)]
    kubernetes = provider(cluster, tmp_path)
    cluster.kubeconfig(tmp_path / "kubeconfig", user=plugin(tmp_path))

    async def work() -> None:
        give(tmp_path, tokens[0], life_s=3600)
        await kubernetes.offers()
        give(tmp_path, tokens[1], life_s=3600)
        await asyncio.to_thread(cluster.expire, tokens[0])
        await kubernetes.offers()
        await kubernetes.close()

    asyncio.run(work())
    assert cluster.access.refused == 1


def test_a_token_file_that_changes_is_read_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    tokens = [role(cluster, tmp_path) for _ in range(2)]
    file = tmp_path / "token"
    file.write_text(f"{tokens[0]}\n")
    kubernetes = provider(cluster, tmp_path)
    cluster.kubeconfig(tmp_path / "kubeconfig", user={"tokenFile": "token"})

    async def work() -> None:
        await kubernetes.offers()
        file.write_text(f"{tokens[1]}\n")
        await asyncio.to_thread(cluster.expire, tokens[0])
        await kubernetes.offers()
        await kubernetes.close()

    asyncio.run(work())


# --- connections ---


def test_a_job_that_a_frozen_watch_misses_is_not_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> list[JobStatus]:
        kubernetes = instance.provider
        first = await instance.running(instance.job(STAY))
        await polled(instance, first, JobStatus.RUNNING)
        cluster.faults.wire.freeze()
        config = instance.job("print('once')")
        job_id = await insist(lambda: kubernetes.submit_job(config))
        seen: list[JobStatus] = []

        async def look() -> bool:
            found = await insist(lambda: kubernetes.poll_jobs([job_id]))
            seen.extend(result.status for result in found.values())
            return bool(seen) and seen[-1].is_over

        deadline = time.monotonic() + 60
        while not await look():
            assert time.monotonic() < deadline, "the watch does not have it"
            await asyncio.sleep(0.05)
        assert await insist(lambda: kubernetes.cancel_job(first))
        return seen

    seen = run(cluster, tmp_path, work, timeout_s=1.0)
    assert seen[-1] is JobStatus.COMPLETED


def test_a_watch_that_is_silent_begins_again(cluster: Cluster, tmp_path: Path) -> None:
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        cluster.faults.wire.freeze()
        await asyncio.to_thread(cluster.delete, "jobs", job_id)
        return await polled(instance, job_id)

    settings = {"watch_silence_s": 1.0, "timeout_s": 1.0}
    result = run(cluster, tmp_path, work, **settings)
    assert result.status is JobStatus.CANCELLED


def keepalive_timers(port: int) -> list[bool]:
    """Whether the system watches each of our connections to this port."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    remote = f"{socket.htonl(0x7F000001):08X}:{port:04X}"
    rows = [line.split() for line in lines]
    established = [row for row in rows if row[2] == remote and row[3] == "01"]
    return [row[5].startswith("02:") for row in established]


def test_the_system_watches_the_connections(cluster: Cluster, tmp_path: Path) -> None:
    port = int(cluster.address.rpartition(":")[2])

    async def work(instance: Subject) -> None:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        await eventually(lambda: all(keepalive_timers(port)))
        assert len(keepalive_timers(port)) >= 2, "the two watches"
        await instance.clean_up()

    run(cluster, tmp_path, work)


def test_calls_do_not_wait_for_streams(cluster: Cluster, tmp_path: Path) -> None:
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        kubernetes = instance.provider
        assert isinstance(kubernetes, KubernetesProvider)
        listeners = [Listener(kubernetes, job_id) for _ in range(110)]
        for listener in listeners:
            await listener.hears(b"here\n")
        assert await kubernetes.cancel_job(job_id)
        for listener in listeners:
            assert await listener.to_the_end() == b"here\n"
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work, timeout_s=3.0)
    assert result.status is JobStatus.CANCELLED


def test_a_watch_that_ends_at_once_is_not_begun_again_and_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> float:
        ending = cluster.faults.end_watches("/pods$")
        began = time.monotonic()
        await instance.provider.poll_jobs([])
        await eventually(lambda: ending.met >= 3)
        return time.monotonic() - began

    assert run(cluster, tmp_path, work) >= 1.0, "it waits longer and longer"


def test_a_watch_that_is_slow_is_not_begun_again_for_each_job_that_it_misses(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> int:
        await instance.provider.poll_jobs([])
        slow = cluster.faults.hang("WATCH", "/jobs$", times=None)
        await asyncio.to_thread(cluster.end_watches)
        await eventually(lambda: slow.met)
        jobs = [await instance.submit(instance.job("pass")) for _ in range(6)]
        for job_id in jobs:
            assert (await polled(instance, job_id)).status is JobStatus.COMPLETED
        return slow.met

    # Each watch is given up after a while, of which a busy machine takes more.
    assert run(cluster, tmp_path, work) < 6


def test_a_list_that_is_too_old_between_two_pages_is_begun_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_PAGE", 1)

    async def work(instance: Subject) -> int:
        first = cluster.faults.hang("GET", "/nodes$")
        reading = asyncio.create_task(instance.provider.offers())
        await eventually(lambda: first.met)
        second = cluster.faults.hang("GET", "/nodes$")
        first.release()
        await eventually(lambda: second.met)
        await asyncio.to_thread(cluster.forget_history)
        second.release()
        return sum(offer.nodes for offer in await reading)

    assert run(cluster, tmp_path, work) == 2


def test_a_404_of_a_proxy_is_not_that_there_is_no_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> str | None:
        kubernetes = instance.provider
        config = instance.job("pass")
        job_id = await kubernetes.submit_job(config)
        cluster.faults.misdirect("GET", f"/{job_id}$")
        with pytest.raises(ProviderError, match="Not Found"):
            await kubernetes.find_by_attempt(config.attempt_id)
        await polled(instance, job_id)
        return await kubernetes.find_by_attempt(config.attempt_id)

    assert run(cluster, tmp_path, work)


def test_why_a_job_waits_holds_up_no_answer(cluster: Cluster, tmp_path: Path) -> None:
    for node in ("one", "two"):
        cluster.cordon(node)

    async def work(instance: Subject) -> JobResult:
        events = cluster.faults.hang("GET", "/events$", times=None)
        job_id = await instance.submit(instance.job("pass"))
        await polled(instance, job_id, JobStatus.PENDING)
        while not events.met:
            await instance.provider.poll_jobs([job_id])
            await asyncio.sleep(0.05)
        poll = instance.provider.poll_jobs([job_id])
        result = (await asyncio.wait_for(poll, 60))[job_id]
        cluster.faults.lift()
        await instance.clean_up()
        return result

    result = run(cluster, tmp_path, work)
    assert result.status is JobStatus.PENDING


# --- nodes ---


def lose(cluster: Cluster, job_id: str) -> None:
    """The job's node stops to answer. Its pod stays listed."""
    pod = pod_of(cluster, job_id)
    cluster.lose_node(pod["spec"]["nodeName"])
    name = pod["metadata"]["name"]
    wait_until(lambda: cluster.objects("pods")[0]["metadata"].get("deletionTimestamp"))
    assert cluster.get("pods", name), "nobody collects it"


def test_a_job_on_a_node_that_does_not_answer_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> tuple[JobResult, bytes]:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        kubernetes = instance.provider
        assert isinstance(kubernetes, KubernetesProvider)
        listener = Listener(kubernetes, job_id)
        await listener.hears(b"here\n")
        await asyncio.to_thread(lose, cluster, job_id)
        result = await polled(instance, job_id)
        return result, await listener.to_the_end()

    result, heard = run(cluster, tmp_path, work, node_lost_s=0.3)
    assert (result.status, result.reason) == (JobStatus.FAILED, "node_lost")
    assert result.error_message == "its node does not answer (one)"
    assert heard == b"here\n"
    assert wait_until(lambda: not left(cluster))


def test_a_job_on_a_node_that_does_not_answer_can_be_cancelled(
    tmp_path: Path,
) -> None:
    with Cluster([Node("one")], garbage_s=2.0) as cluster:

        async def work(instance: Subject) -> JobResult:
            job_id = await instance.running(instance.job(STAY))
            await polled(instance, job_id, JobStatus.RUNNING)
            await asyncio.to_thread(lose, cluster, job_id)
            before = cluster.faults.count("pods", "list")
            assert await instance.provider.cancel_job(job_id)
            result = await polled(instance, job_id)
            assert cluster.faults.count("pods", "list") - before < 8
            return result

        result = run(cluster, tmp_path, work, force_after_s=0.5)
        assert result.status is JobStatus.CANCELLED
        deletions = cluster.faults.count("pods", "delete")
        assert deletions == 1, "by force, once"
        assert wait_until(lambda: not left(cluster))


def test_a_pod_on_a_node_that_does_not_answer_holds_no_job_that_is_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        await asyncio.to_thread(lose, cluster, job_id)
        await asyncio.to_thread(cluster.delete, "jobs", job_id)
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work, node_lost_s=0.5)
    assert result.status is JobStatus.CANCELLED
    assert wait_until(lambda: not left(cluster))


def test_a_finalizer_that_is_stuck_holds_no_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    def hold(job: dict[str, Any]) -> None:
        job["metadata"]["finalizers"] = ["example.com/stuck"]

    async def work(instance: Subject) -> JobResult:
        gpu = GpuSpec(gpu_count=2)
        for _ in range(2):
            await instance.running(instance.job(STAY, gpu_spec=gpu))
        waiting = await instance.submit(instance.job(STAY, gpu_spec=gpu))
        await polled(instance, waiting, JobStatus.PENDING)
        await asyncio.to_thread(cluster.edit, "jobs", waiting, hold)
        assert await instance.provider.cancel_job(waiting)
        result = await polled(instance, waiting)
        await instance.clean_up()
        return result

    result = run(cluster, tmp_path, work, force_after_s=0.5)
    assert result.status is JobStatus.CANCELLED


# --- output ---


async def end_cleanly(cluster: Cluster, pod: str) -> None:
    cluster.faults.wire.end("/log$")


async def reset(cluster: Cluster, pod: str) -> None:
    cluster.faults.reset_connections()


async def restart(cluster: Cluster, pod: str) -> None:
    """The API server starts again: for a while it answers nobody."""
    away = cluster.faults.cut(times=None)
    cluster.faults.reset_connections()
    say(cluster, "two")
    await eventually(lambda: away.met > 3)
    away.release()


async def rotate(cluster: Cluster, pod: str) -> None:
    await asyncio.to_thread(cluster.rotate_log, pod)
    cluster.faults.wire.end("/log$")


async def stall(cluster: Cluster, pod: str) -> None:
    cluster.faults.wire.stall("/log$")


@pytest.mark.parametrize("trouble", [end_cleanly, reset, restart, rotate, stall])
def test_a_stream_that_breaks_leaves_out_nothing(
    cluster: Cluster,
    tmp_path: Path,
    trouble: Callable[[Cluster, str], Awaitable[None]],
) -> None:
    async def work(instance: Subject) -> bytes:
        kubernetes = instance.provider
        assert isinstance(kubernetes, KubernetesProvider)
        job_id = await instance.submit(instance.job(TALKS))
        await polled(instance, job_id, JobStatus.RUNNING)
        pod = pod_of(cluster, job_id)["metadata"]["name"]
        listener = Listener(kubernetes, job_id)
        say(cluster, "one")
        await listener.hears(b"one\n")
        await trouble(cluster, pod)
        say(cluster, "two")
        await listener.hears(b"one\ntwo\n")
        await trouble(cluster, pod)
        # It prints its last word and ends, while nobody listens.
        say(cluster, "three")
        return await listener.to_the_end()

    heard = run(cluster, tmp_path, work, volumes=FLAG, log_silence_s=0.5)
    assert heard == b"one\ntwo\nthree\n"


def test_a_log_is_read_on_behind_a_mark_also_when_it_was_rotated(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> list[bytes]:
        kubernetes = instance.provider
        job_id = await instance.submit(instance.job(TALKS))
        await polled(instance, job_id, JobStatus.RUNNING)
        pod = pod_of(cluster, job_id)["metadata"]["name"]
        heard: list[bytes] = []
        mark = ""
        for word in ("one", "two"):
            say(cluster, word)
            async with aclosing(kubernetes.stream_output(job_id, mark=mark)) as parts:
                part = await anext(parts)
            heard.append(part.data)
            mark = part.mark()
            await asyncio.to_thread(cluster.rotate_log, pod)
        say(cluster, "three")
        rest = kubernetes.stream_output(job_id, mark=mark)
        return heard + [part.data async for part in rest]

    heard = run(cluster, tmp_path, work, volumes=FLAG)
    assert heard == [b"one\n", b"two\n", b"three\n"]


def test_the_shares_of_a_gang_are_read_on_each_behind_its_own_mark(
    cluster: Cluster, tmp_path: Path
) -> None:
    code = """
        import os, time
        rank = os.environ["NODE_RANK"]
        print("first", rank, flush=True)
        while not os.path.exists("/flag/one"):
            time.sleep(0.01)
        print("second", rank, end="", flush=True)
        """

    async def work(instance: Subject) -> list[bytes]:
        kubernetes = instance.provider
        job_id = await instance.submit(instance.job(code, options={"nodes": 2}))
        await polled(instance, job_id, JobStatus.RUNNING)
        async with aclosing(kubernetes.stream_output(job_id, mark="")) as parts:
            first = await anext(parts)
            mark = first.mark()
        say(cluster, "one")
        rest = kubernetes.stream_output(job_id, mark=mark)
        return [first.data] + [part.data async for part in rest]

    heard = run(cluster, tmp_path, work, volumes=FLAG)
    assert sorted(heard) == [b"first 0\n", b"first 1\n", b"second 0", b"second 1"]


def test_a_node_that_cannot_wait_for_more_output_says_so_in_nobodys_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(instance: Subject) -> bytes:
        kubernetes = instance.provider
        assert isinstance(kubernetes, KubernetesProvider)
        job_id = await instance.submit(instance.job(TALKS))
        await polled(instance, job_id, JobStatus.RUNNING)
        await asyncio.to_thread(
            cluster.watch_no_log, pod_of(cluster, job_id)["metadata"]["name"]
        )
        listener = Listener(kubernetes, job_id)
        for words in (["one"], ["one", "two"]):
            say(cluster, words[-1])
            await listener.hears("".join(f"{word}\n" for word in words).encode())
        say(cluster, "three")
        return await listener.to_the_end()

    assert run(cluster, tmp_path, work, volumes=FLAG) == b"one\ntwo\nthree\n"


def test_a_log_that_its_node_has_removed_ends(cluster: Cluster, tmp_path: Path) -> None:
    async def work(instance: Subject) -> bytes:
        kubernetes = instance.provider
        assert isinstance(kubernetes, KubernetesProvider)
        job_id = await instance.submit(instance.job("print('here')"))
        await polled(instance, job_id)
        await asyncio.to_thread(
            cluster.remove_log, pod_of(cluster, job_id)["metadata"]["name"]
        )
        return await Listener(kubernetes, job_id).to_the_end()

    assert run(cluster, tmp_path, work) == b""


def test_a_pod_that_never_began_has_no_output(cluster: Cluster, tmp_path: Path) -> None:
    for node in ("one", "two"):
        cluster.lose_device_plugin(node)

    async def work(instance: Subject) -> bytes:
        kubernetes = instance.provider
        assert isinstance(kubernetes, KubernetesProvider)
        config = instance.job("pass", gpu_spec=GpuSpec(gpu_count=1))
        job_id = await instance.submit(config)
        assert (await polled(instance, job_id)).reason == "preempted"
        return await Listener(kubernetes, job_id).to_the_end()

    assert run(cluster, tmp_path, work) == b""
