"""The server's end of the agent link, over a real unix socket, with peers that behave
and peers that do not.
"""

import asyncio
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, JobStatus
from gpuyard.providers.link import LOG_PART
from tests.support.node import Recorder
from tests.support.peer import hello, open_door
from tests.support.wait import eventually

A100 = wire.GpuStatus("GPU-1", 0, "NVIDIA A100-SXM4-40GB", 40960)
BROKEN = wire.GpuStatus(
    "GPU-2", 1, "NVIDIA A100-SXM4-40GB", 40960, problem="lost", state="offline"
)


@pytest.fixture
def sink():
    return Recorder()


@pytest.fixture
def door(tmp_path, sink):
    return lambda **config: open_door(tmp_path / "agent.sock", sink, **config)


def job(attempt_id="a1", **fields):
    values = {
        "name": "j",
        "command": ("true",),
        "gpu_spec": GpuSpec(gpu_count=0),
        "attempt_id": attempt_id,
    } | fields
    return JobConfig(**values)


def test_hello_is_welcomed_and_the_end_of_the_link_is_told(door, sink):
    async def scenario():
        async with door() as instance:
            peer = await instance.dial()
            assert (await peer.join()).epoch == 1
            assert (await instance.provider.health_check())["status"] == "healthy"
            peer.writer.close()
            await eventually(
                lambda: sink.left == ["node_1"], what="the end of the link"
            )
            health = await instance.provider.health_check()
            assert health["status"] == "unhealthy"
            assert health["message"]

    asyncio.run(scenario())


GARBAGE = {
    "noise": b"\xde\xad\xbe\xef" * 64,
    "an absurd length": struct.pack(">I", wire_frames.MAX_FRAME + 1),
    "no msgpack": struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
    "an empty body": struct.pack(">I", 0),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\0" * 2000,
    "not one of ours": struct.pack(">I", 2) + b"\x91\x01",
    "the server's own words": wire_frames.encode(wire.Welcome(1)),
    "a field of the wrong type": (
        wire_frames.encode(hello()).replace(b"\xa4cpus\x04", b"\xa4cpus\xc3")
    ),
    "a frame cut short": wire_frames.encode(hello())[:-3],
}


@pytest.mark.parametrize("joined", [False, True], ids=["before Hello", "after Hello"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_its_own_link_and_no_other(door, sink, garbage, joined):
    async def scenario():
        async with door() as instance:
            other = await instance.joined(hello("node_other"))
            peer = await instance.joined() if joined else await instance.dial()
            peer.writer.write(garbage)
            peer.writer.write_eof()
            assert await peer.closed()
            if joined:
                await eventually(
                    lambda: sink.left == ["node_1"], what="the end of the link"
                )
            await other.acknowledged(other.report(wire.Started("a", 1.0, 1)))
            await (await instance.dial()).join()

    asyncio.run(scenario())


def test_what_a_peer_says_before_hello_or_in_vain_is_passed_over(door, sink):
    async def scenario():
        async with door() as instance:
            peer = await instance.dial()
            peer.report(wire.Started("a", 1.0, 1))
            peer.send(wire.LogPart(99, 0, b"", True), wire.Found(98, "a", "running"))
            await peer.join()
            peer.send(hello("node_2"))
            await peer.acknowledged(peer.report(wire.Started("b", 1.0, 1)))
            assert sink.reports == [wire.Started("b", 1.0, 1)]
            assert [seen.node_id for seen in sink.hellos] == ["node_1"]

    asyncio.run(scenario())


def test_another_users_process_is_refused(door, sink, tmp_path, monkeypatch):
    """As root a process of `nobody` dials; else this process dials and the server takes
    itself for someone else.
    """
    dial = """
import contextlib, socket, sys
dialled = socket.socket(socket.AF_UNIX)
dialled.connect(sys.argv[1])
with contextlib.suppress(OSError):
    dialled.sendall(sys.stdin.buffer.read())
    dialled.recv(1)
"""
    path = tmp_path / "agent.sock"
    user: dict[str, int] = {"user": 65534} if os.getuid() == 0 else {}
    if not user:
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    python = shutil.which("python3", path=os.defpath) or sys.executable

    async def scenario():
        async with door() as instance:
            path.chmod(0o666)
            for folder in path.parents:
                if folder.stat().st_uid == os.getuid() and user:
                    folder.chmod(folder.stat().st_mode | 0o011)
            done = await asyncio.to_thread(
                subprocess.run,
                [python, "-I", "-S", "-c", dial, path],
                input=wire_frames.encode(hello()),
                cwd="/",
                **user,
            )
            assert done.returncode == 0
            assert not sink.hellos
            if user:
                await instance.joined(hello("ours"))
                assert [seen.node_id for seen in sink.hellos] == ["ours"]

    asyncio.run(scenario())


def test_a_node_that_dials_again_replaces_its_old_link(door, sink):
    async def scenario():
        async with door() as instance:
            old = await instance.joined()
            new = await instance.joined()
            assert await old.closed()
            await instance.provider.submit_job(job())
            assert (await new.receive(wire.StartAttempt)).attempt_id == "a1"
            assert sink.left == []

    asyncio.run(scenario())


def test_reports_are_acknowledged_after_their_commit_and_many_at_once(door, sink):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined()
            free = asyncio.Event()
            passed_on = sink.reported
            taken = []

            async def slow(node_id, bodies):
                taken.extend(bodies)
                await free.wait()
                await passed_on(node_id, bodies)

            sink.reported = slow
            last = peer.report(
                *(wire.Started(f"a{number}", 1.0, number) for number in range(100))
            )
            # The reports are in and the commit of the first is under way: nothing is
            # acknowledged.
            (link,) = instance.provider.agents._serving
            await eventually(
                lambda: len(taken) + len(link._reports) == 100, what="the reports"
            )
            assert sink.reports == []
            free.set()
            assert await peer.acknowledged(last) <= 3
            assert [body.attempt_id for body in sink.reports] == [
                f"a{number}" for number in range(100)
            ]

    asyncio.run(scenario())


def test_reports_that_cannot_be_committed_end_the_link_unacknowledged(door, sink):
    async def scenario():
        async with door() as instance:
            sink.full = True
            peer = await instance.joined()
            peer.report(wire.Started("a", 1.0, 1))
            assert await peer.closed()
            sink.full = False
            again = await instance.joined()
            await again.acknowledged(again.report(wire.Started("a", 1.0, 1)))
            assert sink.reports == [wire.Started("a", 1.0, 1)]

    asyncio.run(scenario())


def test_a_status_follows_the_reports_and_the_link(door, sink):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined()
            provider = instance.provider

            async def status():
                return (await provider.get_job_status("a1")).status

            await provider.submit_job(job())
            await peer.receive(wire.StartAttempt)
            assert await status() is JobStatus.PENDING
            await peer.acknowledged(peer.report(wire.Started("a1", 1.0, 1)))
            assert await status() is JobStatus.RUNNING
            peer.writer.close()
            await eventually(lambda: sink.left, what="the end of the link")
            assert await status() is JobStatus.UNKNOWN
            with pytest.raises(ProviderError) as caught:
                await provider.get_job_logs("a1")
            assert (caught.value.provider, caught.value.error_code) == (
                "agent",
                "NOT_CONNECTED",
            )
            peer = await instance.joined(
                hello(attempts=[wire.HeldAttempt("a1", 0, "running")])
            )
            assert await status() is JobStatus.RUNNING
            await peer.acknowledged(
                peer.report(wire.Ended("a1", 2.0, 1.0, exit_code=0))
            )
            peer = await instance.joined(
                hello(attempts=[wire.HeldAttempt("a1", 0, "ended")])
            )
            asking = asyncio.create_task(provider.get_job_status("a1"))
            question = await peer.receive(wire.ReadLog)
            peer.send(wire.LogPart(question.request, 0, b"well done\n", end=True))
            result = await asking
            assert (result.status, result.logs) == (JobStatus.COMPLETED, "well done\n")

    asyncio.run(scenario())


def test_gpus_are_listed_by_kind_without_those_in_trouble_and_as_last_seen(door):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined(hello(gpus=[A100, BROKEN]))
            (spec,) = await instance.provider.list_available_gpus()
            assert spec == GpuSpec(
                gpu_type=A100.name, gpu_count=1, memory_gb=40, vcpus=4, ram_gb=16
            )
            healed = wire.GpuStatus(BROKEN.uuid, 1, BROKEN.name, BROKEN.memory_mb)
            t4 = wire.GpuStatus("GPU-3", 2, "Tesla T4", 15360)
            await peer.acknowledged(peer.report(wire.GpusSeen([A100, healed, t4])))
            found = await instance.provider.list_available_gpus()
            assert [(spec.gpu_type, spec.gpu_count) for spec in found] == [
                (A100.name, 2),
                ("Tesla T4", 1),
            ]

    asyncio.run(scenario())


def test_a_job_that_names_no_node_gets_gpus_nobody_else_has(door):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined(hello(gpus=[A100, BROKEN]))
            provider = instance.provider
            one_gpu = {"gpu_spec": GpuSpec(gpu_type="A100", gpu_count=1)}
            await provider.submit_job(job("a1", **one_gpu))
            assert (await peer.receive(wire.StartAttempt)).gpu_uuids == ["GPU-1"]
            with pytest.raises(InsufficientResourcesError):
                await provider.submit_job(job("a2", **one_gpu))
            await provider.submit_job(job("a1", **one_gpu))
            assert (await peer.receive(wire.StartAttempt)).gpu_uuids == ["GPU-1"]
            await peer.acknowledged(
                peer.report(wire.Ended("a1", 2.0, 1.0, exit_code=0))
            )
            await provider.submit_job(job("a2", **one_gpu))
            assert (await peer.receive(wire.StartAttempt)).gpu_uuids == ["GPU-1"]

    asyncio.run(scenario())


def test_what_cannot_be_placed_is_refused_and_not_remembered(door):
    async def scenario():
        async with door() as instance:
            provider = instance.provider
            with pytest.raises(InsufficientResourcesError):
                await provider.submit_job(job())
            peer = await instance.joined()
            for spec in (
                GpuSpec(gpu_count=1),
                GpuSpec(gpu_type="A1000"),
                GpuSpec(gpu_count=0, vcpus=99),
            ):
                with pytest.raises(InsufficientResourcesError) as caught:
                    await provider.submit_job(job(gpu_spec=spec))
                assert caught.value.requested_spec == spec
            with pytest.raises(ProviderError, match="no agent connected") as refused:
                await provider.submit_job(job(provider_options={"node_id": "node_9"}))
            assert refused.value.error_code == "NOT_CONNECTED"
            with pytest.raises(JobNotFoundError):
                await provider.get_job_status("a1")
            await provider.submit_job(job(provider_options={"node_id": "node_1"}))
            assert (await peer.receive(wire.StartAttempt)).attempt_id == "a1"

    asyncio.run(scenario())


def test_more_than_a_frame_holds_is_refused_and_the_link_lives_on(door):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined()
            with pytest.raises(ProviderError, match="bytes are more than") as caught:
                await instance.provider.submit_job(
                    job("big", args_via_stdin=bytes(wire_frames.MAX_FRAME))
                )
            assert (caught.value.provider, caught.value.error_code) == (
                "agent",
                "TOO_LARGE",
            )
            await instance.provider.submit_job(job("small"))
            assert (await peer.receive(wire.StartAttempt)).attempt_id == "small"

    asyncio.run(scenario())


def test_a_log_is_read_up_to_its_end_as_it_was_and_a_running_job_does_not_keep_the_answer_open(
    door,
):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined()
            await instance.provider.submit_job(job())
            await peer.receive(wire.StartAttempt)
            asking = asyncio.create_task(instance.provider.get_job_logs("a1"))
            for offset, data in ((0, b"x" * LOG_PART), (LOG_PART, b"the end so far")):
                question = await peer.receive(wire.ReadLog)
                assert (question.offset, question.limit, question.wait_s) == (
                    offset,
                    LOG_PART,
                    0,
                )
                peer.send(wire.LogPart(question.request, offset, data, end=False))
            assert await asking == "x" * LOG_PART + "the end so far"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("broken", "code"), [("link", "NOT_CONNECTED"), ("answer", "BAD_ANSWER")]
)
def test_a_question_that_will_not_be_answered_fails(door, broken, code):
    async def scenario():
        async with door() as instance:
            peer = await instance.joined()
            await instance.provider.submit_job(job())
            await peer.receive(wire.StartAttempt)
            asking = asyncio.create_task(instance.provider.get_job_logs("a1"))
            question = await peer.receive(wire.ReadLog)
            if broken == "link":
                peer.writer.close()
            else:
                peer.send(wire.Found(question.request, "a1", "running"))
            with pytest.raises(ProviderError) as caught:
                await asking
            assert (caught.value.provider, caught.value.error_code) == ("agent", code)

    asyncio.run(scenario())


def test_an_agent_that_does_not_answer_is_given_up(door, monkeypatch):
    monkeypatch.setattr("gpuyard.providers.link._ANSWER_S", 0.05)

    async def scenario():
        async with door() as instance:
            await instance.joined()
            with pytest.raises(ProviderError) as caught:
                await instance.provider.find_by_attempt("a1")
            assert caught.value.error_code == "NO_ANSWER"

    asyncio.run(scenario())


def test_without_any_agent_nobody_can_say_that_an_attempt_never_arrived(
    door, monkeypatch
):
    monkeypatch.setattr("gpuyard.providers.connected_agents._CONNECT_S", 0.05)

    async def scenario():
        async with door() as instance:
            with pytest.raises(ProviderError) as caught:
                await instance.provider.find_by_attempt("a1")
            assert caught.value.error_code == "NOT_CONNECTED"

    asyncio.run(scenario())


def test_what_is_forgotten_stopped_and_dismissed_is_sent(door):
    async def scenario():
        async with door(epoch=7) as instance:
            peer = await instance.joined()
            provider = instance.provider
            await provider.forget("node_1", [])
            await provider.forget("node_9", ["a1"])
            await provider.forget("node_1", ["a1", "a2"])
            assert (await peer.receive(wire.Forget)).attempt_ids == ["a1", "a2"]
            await provider.stop_attempt("node_1", "a1", "preempted", checkpoint=True)
            assert await peer.receive(wire.StopAttempt) == wire.StopAttempt(
                "a1", 7, "preempted", True
            )
            await provider.dismiss()
            await peer.receive(wire.Leave)

    asyncio.run(scenario())


def test_closing_hangs_up_on_everyone(tmp_path: Path, sink):
    async def scenario():
        async with open_door(tmp_path / "agent.sock", sink) as instance:
            joined = await instance.joined()
            silent = await instance.dial()
            await instance.provider.close()
            assert await joined.closed()
            assert await silent.closed()
            assert sink.left == ["node_1"]

    asyncio.run(scenario())
