"""The hub and what connects to it: real solvers, and whoever does what no solver
should.
"""

import asyncio
import errno
import gzip
import hashlib
import resource
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.verification.answers import AnswersError, IncomingFile, answers_of
from gpuyard.verification.certificates import HubAuthority
from gpuyard.verification.hub import ConnectionLostError, Hub, SolverConnection, release
from gpuyard.verification.protocol import (
    LONGEST_LINE,
    AnswersPiece,
    Claims,
    Conversation,
    Declined,
    Failed,
    Hash,
    ProtocolError,
    Ready,
    SolverStage,
    SolverTask,
)
from gpuyard.verification.solver import memory, messages
from gpuyard.verification.solver.memory_numpy import NumpyMemory
from gpuyard.verification.solver.probe import nonce_of
from gpuyard.verification.timed_reader import TimedReader
from tests.integration.verification.hubs import Caller, solving
from tests.integration.verification.solvers import PROMPTS, order, solved
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
READY = {"type": "ready"}
READY_MOCK = Ready(runtime={"engine": "mock"})
FILE = messages.canonical(dict.fromkeys(PROMPTS, "an answer"))
HASH = {"type": "hash", "sha256": hashlib.sha256(FILE).hexdigest(), "solve_s": 0.5}
ANSWERS = list(messages.pieces("answers", FILE, 1 << 18))


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Their TLS is not the same code."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub() as one:
        yield one


async def test_a_hub_may_open_a_file_for_each_of_many_solvers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        async with Hub():
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 4096
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def take_all(line: SolverConnection) -> dict[str, str]:
    """The answers, from the hash on."""
    announced = await line.receive(60)
    assert isinstance(announced, Hash)
    parcel = IncomingFile()
    while not parcel.complete:
        message = await line.receive(60)
        if isinstance(message, AnswersPiece):
            parcel.add(message)
    return answers_of(parcel, announced.sha256, PROMPTS)


async def test_what_came_before_the_seed_is_no_result(hub: Hub, tmp_path: Path) -> None:
    """It is judged by its arrival, and not by when somebody reads it."""
    ids = ["hasty", "patient"]
    callers = [await Caller.connect(hub.invite(one), tmp_path) for one in ids]
    lines = [await hub.expect(one, 10) for one in ids]
    for caller, line in zip(callers, lines, strict=True):
        await caller.say(READY)
        await line.receive(10)
    await callers[0].say(HASH)
    await eventually(lambda: lines[0].unread > 0, "its hash")
    released = release(lines, dict.fromkeys(ids, 7))
    assert list(released) == ["patient"]
    await callers[1].say(HASH)
    await eventually(lambda: lines[1].unread > 0, "its hash")
    came_by = time.monotonic()
    assert isinstance(await lines[1].receive(10), Hash)
    assert released["patient"] <= lines[1].heard_at <= came_by


# --- real solvers ---


async def test_a_solver_gets_its_seed_at_the_barrier_and_answers_with_it(
    hub: Hub, tmp_path: Path
) -> None:
    wanted = order(seed=None, stream=hub.invite("chk_1"))
    async with solving(wanted, {"TMPDIR": str(tmp_path)}) as solver:
        line = await hub.expect("chk_1", 60)
        assert line.check_id == "chk_1"
        assert await line.receive(60) == READY_MOCK
        released = release([line], {"chk_1": 7})
        answers = await take_all(line)
        assert list(released) == ["chk_1"]
        assert released["chk_1"] <= line.heard_at
        assert line.conversation.stage is SolverStage.OVER
        hub.dismiss("chk_1")
        output, errors = await solver.communicate()
    assert (solver.returncode, output, errors) == (0, b"", b"")
    assert answers == solved(order(seed=7))
    # Its key was in a file for a moment.
    assert list(tmp_path.iterdir()) == []


async def test_the_seed_reaches_no_solver_before_the_release(
    hub: Hub, tmp_path: Path
) -> None:
    """Nine of ten are ready.

    A mark is sent right before the release: it is the first that each of them hears.
    """
    ids = [f"chk_{number}" for number in range(10)]
    callers = [await Caller.connect(hub.invite(one), tmp_path) for one in ids]
    lines = [await hub.expect(one, 10) for one in ids]
    for caller, line in zip(callers[:9], lines[:9], strict=True):
        await caller.say(READY)
        await line.receive(10)
    for line in lines:
        await line.send({"type": "mark"})
    seeds = {one: number * 1000 for number, one in enumerate(ids)}
    assert set(release(lines, seeds)) == set(ids[:9])
    assert [await caller.hear() for caller in callers] == [{"type": "mark"}] * 10
    assert [await caller.hear() for caller in callers[:9]] == [
        {"type": "seed", "seed": seeds[one]} for one in ids[:9]
    ]
    # Who was not ready when the others started gets none, then or later.
    assert lines[9].conversation.stage is SolverStage.STARTING
    hub.dismiss(ids[9])
    assert await callers[9].hear() == {"type": "end"}


async def test_a_seed_in_the_order_and_claims_and_generating_work_over_the_stream_too(
    hub: Hub,
) -> None:
    stream = hub.invite("chk_1", seeded=True)
    async with solving(order(stream=stream, claims={"inventory": True, "nonce": "00"})):
        line = await hub.expect("chk_1", 60)
        assert [(await line.receive(60)).type for _ in range(3)] == [
            "ready",
            "hash",
            "claims",
        ]
        assert isinstance(await line.receive(60), AnswersPiece)
        line.close()
    stream = hub.invite("chk_2", task=SolverTask.PROBE)
    async with solving(
        order(task="probe", seed=None, stream=stream, claims={"inventory": True})
    ):
        line = await hub.expect("chk_2", 60)
        assert isinstance(await line.receive(60), Ready)
        assert isinstance(await line.receive(60), Claims)
        line.close()
    stream = hub.invite("chk_3", task=SolverTask.GENERATE)
    wanted = {"series": 2, "prompts": 5, "seed": 1}
    async with solving(
        order(task="generate", generate=wanted, seed=None, stream=stream)
    ):
        line = await hub.expect("chk_3", 60)
        assert [(await line.receive(60)).type for _ in range(2)] == ["ready", "series"]
        line.close()


async def test_a_solver_makes_its_claims_for_its_answers_and_for_the_salt(
    hub: Hub,
) -> None:
    size = {"vram_gb": 1 / 2048, "passes": 16}
    wanted = order(seed=None, stream=hub.invite("chk_1"), claims=size)
    async with solving(wanted):
        line = await hub.expect("chk_1", 60)
        await line.receive(60)
        release([line], {"chk_1": 7})
        said = await line.receive(60)
        assert isinstance(said, Hash)
        await line.send({"type": "salt", "salt": "unknown before"})
        claims = await line.receive(60)
        line.close()
    assert isinstance(claims, Claims) and claims.vram
    nonce = nonce_of("chk_1", 7, said.sha256, salt="unknown before")
    assert claims.vram["digest"] == memory.digest(nonce, NumpyMemory(2), 16)


async def test_a_solver_whose_engine_fails_says_so_over_the_stream(hub: Hub) -> None:
    wanted = order(seed=None, stream=hub.invite("chk_1"), engine={"kind": "abacus"})
    async with solving(wanted) as solver:
        line = await hub.expect("chk_1", 60)
        message = await line.receive(60)
        assert isinstance(message, Failed)
        assert "abacus" in message.reason
        line.close()
        _, errors = await solver.communicate()
    assert solver.returncode == 1
    assert b"abacus" in errors


async def test_a_solver_whose_hub_ends_before_the_barrier_leaves(hub: Hub) -> None:
    async with solving(order(seed=None, stream=hub.invite("chk_1"))) as solver:
        line = await hub.expect("chk_1", 60)
        await line.receive(60)
        hub.dismiss("chk_1")
        _, errors = await solver.communicate()
    assert solver.returncode == 1
    assert b"the hub has ended the check before it sent the seed" in errors


async def test_a_solver_gives_up_waiting_for_its_seed(hub: Hub) -> None:
    stream = hub.invite("chk_1", wait_s=-4.9)
    async with solving(order(seed=None, stream=stream)) as solver:
        line = await hub.expect("chk_1", 60)
        assert await line.receive(60) == READY_MOCK
        assert await line.receive(60) == Failed(
            reason="nothing came from the hub: The read operation timed out"
        )
        line.close()
        _, errors = await solver.communicate()
    assert solver.returncode == 1
    assert b"timed out" in errors


async def test_a_solver_tries_again_until_its_hub_is_there() -> None:
    """At first somebody is there who hangs up."""
    tried = asyncio.Event()

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        tried.set()

    early = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    late = Hub("127.0.0.1", early.sockets[0].getsockname()[1])
    async with solving(order(seed=None, stream=late.invite("chk_1"))):
        async with asyncio.timeout(60):
            await tried.wait()
        early.close()
        await early.wait_closed()
        async with late:
            assert await (await late.expect("chk_1", 60)).receive(60) == READY_MOCK


async def test_a_solver_tells_nothing_to_somebody_at_the_hubs_address(hub: Hub) -> None:
    """Another hub, whose authority is not the one of the order."""
    async with Hub() as other:
        stream = {**hub.invite("chk_1"), "port": other.port}
        other.invite("chk_1")
        async with solving(order(seed=None, stream=stream)) as solver:
            output, errors = await solver.communicate()
    assert (solver.returncode, output) == (1, b"")
    assert b"who answers at the hub's address is not the hub" in errors
    assert stream["key"].encode() not in errors


async def test_no_solver_can_play_the_hub(hub: Hub, tmp_path: Path) -> None:
    """A check's certificate is of the same authority, but for solvers only."""
    for name in ("chk_2", "service"):
        stream = hub.invite(name)
        (tmp_path / "false.pem").write_text(stream["certificate"] + stream["key"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "false.pem")
        server = await asyncio.start_server(
            lambda *_: None, "127.0.0.1", 0, ssl=context
        )
        mine = {
            **hub.invite(f"victim of {name}"),
            "port": server.sockets[0].getsockname()[1],
        }
        async with (
            solving(order(seed=None, stream=mine)) as solver,
            asyncio.timeout(30),
        ):
            _, errors = await solver.communicate()
        server.close()
        assert solver.returncode == 1
        assert b"is not the hub" in errors


# --- who may connect ---


async def refused(caller: Caller) -> bool:
    """Whether the hub cuts it off."""
    try:
        await caller.say(READY)
        return await caller.hear() is None
    except OSError:
        return True


async def test_a_foreign_certificate_an_expired_one_and_none_are_refused(
    hub: Hub, tmp_path: Path
) -> None:
    stream = hub.invite("chk_1")
    foreign = HubAuthority.create().for_solver("chk_1", 3600)
    assert await refused(
        await Caller.connect(
            {**stream, "certificate": foreign.certificate, "key": foreign.key}, tmp_path
        )
    )
    assert await refused(
        await Caller.connect(hub.invite("chk_2", valid_s=-1.5), tmp_path)
    )
    assert await refused(await Caller.connect(stream, tmp_path, named=False))
    for check_id in ("chk_1", "chk_2"):
        with pytest.raises(
            TimeoutError, match=f"{check_id} did not connect within 0.01 s"
        ):
            await hub.expect(check_id, 0.01)
    # None of that keeps the right one out.
    caller = await Caller.connect(stream, tmp_path)
    await caller.say(READY)
    assert await (await hub.expect("chk_1", 10)).receive(10) == Ready()


async def test_who_connects_twice_is_refused_the_second_time_and_counted(
    hub: Hub, tmp_path: Path
) -> None:
    stream = hub.invite("chk_1")
    first = await Caller.connect(stream, tmp_path)
    line = await hub.expect("chk_1", 10)
    for count in (1, 2):
        assert await refused(await Caller.connect(stream, tmp_path))
        await eventually(
            lambda count=count: line.repeats == count, "the connection to be counted"
        )
    await first.say(READY)
    assert await line.receive(10) == Ready()
    assert set(release([line], {"chk_1": 5})) == {"chk_1"}
    assert await first.hear() == {"type": "seed", "seed": 5}
    # Nor when the first has left, nor when all is over.
    first.leave()
    with pytest.raises(ConnectionLostError):
        await line.receive(10)
    assert await refused(await Caller.connect(stream, tmp_path))
    hub.dismiss("chk_1")
    assert await refused(await Caller.connect(stream, tmp_path))


async def test_a_certificate_speaks_for_its_own_check_only(
    hub: Hub, tmp_path: Path
) -> None:
    mine = hub.invite("chk_mine")
    other = hub.invite("chk_other")
    caller = await Caller.connect(mine, tmp_path)
    await caller.say({"type": "ready", "check": "chk_other"})
    line = await hub.expect("chk_mine", 10)
    with pytest.raises(ProtocolError, match="check: Extra inputs are not permitted"):
        await line.receive(10)
    with pytest.raises(TimeoutError):
        await hub.expect("chk_other", 0.01)
    rightful = await Caller.connect(other, tmp_path)
    await rightful.say(READY)
    assert await (await hub.expect("chk_other", 10)).receive(10) == Ready()


async def test_a_check_is_invited_once(hub: Hub, tmp_path: Path) -> None:
    stream = hub.invite("chk_1")
    with pytest.raises(ValueError, match="chk_1 is invited already"):
        hub.invite("chk_1")
    await Caller.connect(stream, tmp_path)
    await hub.expect("chk_1", 10)
    with pytest.raises(ValueError, match="chk_1 is invited already"):
        hub.invite("chk_1")
    with pytest.raises(KeyError):
        await hub.expect("chk_2")


async def test_who_is_dismissed_before_he_comes_is_refused(
    hub: Hub, tmp_path: Path
) -> None:
    stream = hub.invite("chk_1")
    waiting = asyncio.create_task(hub.expect("chk_1"))
    await asyncio.sleep(0)
    hub.dismiss("chk_1")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await refused(await Caller.connect(stream, tmp_path))


# --- what may be said ---


@pytest.fixture
async def pair(hub: Hub, tmp_path: Path) -> tuple[Caller, SolverConnection]:
    """A connection and our end of it."""
    caller = await Caller.connect(hub.invite("chk_1"), tmp_path)
    return caller, await hub.expect("chk_1", 10)


async def through(pair: tuple[Caller, SolverConnection], stage: SolverStage) -> None:
    """Up to a stage, as it should be."""
    caller, line = pair
    steps: dict[SolverStage, list[Any]] = {
        SolverStage.READY: [READY],
        SolverStage.SOLVING: [READY, None],
        SolverStage.HASHED: [READY, None, HASH],
        SolverStage.OVER: [READY, None, HASH, *ANSWERS],
    }
    for step in steps.get(stage, []):
        if step is None:
            assert release([line], {"chk_1": 7})
            assert await caller.hear() == {"type": "seed", "seed": 7}
        else:
            await caller.say(step)
            await line.receive(10)
    assert line.conversation.stage is stage


@pytest.mark.parametrize(
    "stage",
    [SolverStage.STARTING, SolverStage.READY, SolverStage.SOLVING, SolverStage.HASHED],
)
async def test_whoever_hangs_at_a_stage_is_told_by_it(
    pair: tuple[Caller, SolverConnection], stage: SolverStage
) -> None:
    await through(pair, stage)
    caller, line = pair
    with pytest.raises(
        TimeoutError, match=f"chk_1 said nothing for 0.05 s at the stage {stage}"
    ):
        await line.receive(0.05)
    # Half a line is nothing; what comes later is still read.
    await caller.say(b'{"type": "fai')
    with pytest.raises(TimeoutError):
        await line.receive(0.05)
    await caller.say(b'led", "reason": "slow"}\n')
    assert await line.receive(10) == Failed(reason="slow")


async def test_a_connection_that_never_shakes_hands_keeps_nobody_out(
    hub: Hub, tmp_path: Path
) -> None:
    _, silent = await asyncio.open_connection("127.0.0.1", hub.port)
    silent.write(b"GET / HTTP/1.1\r\n\r\n")
    _, idle = await asyncio.open_connection("127.0.0.1", hub.port)
    caller = await Caller.connect(hub.invite("chk_1"), tmp_path)
    await caller.say(READY)
    assert await (await hub.expect("chk_1", 10)).receive(10) == Ready()
    for one in (silent, idle):
        one.close()


@pytest.mark.parametrize(
    ("stage", "said", "told"),
    [
        (SolverStage.STARTING, HASH, "hash: not to be sent at the stage starting"),
        (SolverStage.READY, HASH, "hash: not to be sent at the stage ready"),
        (SolverStage.READY, READY, "ready: not to be sent at the stage ready"),
        (
            SolverStage.SOLVING,
            ANSWERS[0],
            "answers: not to be sent at the stage solving, but hash or failed",
        ),
        (SolverStage.HASHED, HASH, "hash: not to be sent at the stage hashed"),
        (
            SolverStage.OVER,
            HASH,
            "hash: not to be sent at the stage over, but nothing more",
        ),
        (
            SolverStage.OVER,
            ANSWERS[0],
            "answers: not to be sent at the stage over, but nothing more",
        ),
    ],
)
async def test_what_is_not_due_is_refused(
    pair: tuple[Caller, SolverConnection], stage: SolverStage, said: Any, told: str
) -> None:
    await through(pair, stage)
    await pair[0].say(said)
    with pytest.raises(ProtocolError, match=told):
        await pair[1].receive(10)
    # After that nothing counts.
    await pair[0].say({"type": "failed", "reason": "sorry"})
    with pytest.raises(ProtocolError, match="at the stage over"):
        await pair[1].receive(10)
    assert release([pair[1]], {"chk_1": 9}) == {}


async def test_a_connection_that_the_system_gives_up_is_lost() -> None:
    reader = TimedReader(LONGEST_LINE)
    # So read(2) says it.
    reader.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
    line = SolverConnection(
        "chk_1", Conversation(), reader, cast(asyncio.StreamWriter, None)
    )
    with pytest.raises(ConnectionLostError, match="Connection timed out"):
        await line.receive()


async def test_a_line_without_an_end_is_refused_when_it_is_too_long(
    pair: tuple[Caller, SolverConnection],
) -> None:
    caller, line = pair
    endless = asyncio.create_task(caller.say(*[b"x" * 65536] * 1000))
    with pytest.raises(ProtocolError, match="more than 1048576 bytes"):
        await line.receive(20)
    line.abort()
    with suppress(OSError):
        await endless
    with pytest.raises(ConnectionLostError):
        await line.receive(10)


async def test_a_line_that_ends_with_its_connection_is_refused(
    pair: tuple[Caller, SolverConnection],
) -> None:
    caller, line = pair
    await caller.say(b'{"type": "ready"}')
    caller.writer.close()
    with pytest.raises(ProtocolError, match="in the middle of a line"):
        await line.receive(10)


async def test_after_a_line_that_cannot_be_read_nothing_counts(
    pair: tuple[Caller, SolverConnection],
) -> None:
    caller, line = pair
    await caller.say(b"hello\n", READY)
    with pytest.raises(ProtocolError, match="Invalid JSON"):
        await line.receive(10)
    with pytest.raises(
        ProtocolError, match="ready: not to be sent at the stage over, but nothing more"
    ):
        await line.receive(10)
    assert release([line], {"chk_1": 1}) == {}


async def test_the_longest_line_that_may_be_sent_arrives(
    pair: tuple[Caller, SolverConnection],
) -> None:
    await through(pair, SolverStage.HASHED)
    caller, line = pair
    data = b64encode(gzip.compress(b"x")).decode()
    start = len(messages.line({"type": "answers", "part": 0, "of": 1, "data": data}))
    padded = {
        "type": "answers",
        "part": 0,
        "of": 1,
        "data": data + "=" * (LONGEST_LINE - start),
    }
    saying = asyncio.create_task(caller.say(messages.line(padded)))
    message = await line.receive(20)
    await saying
    assert isinstance(message, AnswersPiece)
    assert len(message.data) > LONGEST_LINE - 100


async def test_answers_with_the_hash_of_something_else_are_refused(
    pair: tuple[Caller, SolverConnection],
) -> None:
    await through(pair, SolverStage.SOLVING)
    caller, line = pair
    await caller.say({**HASH, "sha256": "a" * 64}, *ANSWERS)
    with pytest.raises(AnswersError, match=f"but {'a' * 64} was announced"):
        await take_all(line)


async def test_who_declines_is_heard_with_his_receipts(
    pair: tuple[Caller, SolverConnection],
) -> None:
    caller, line = pair
    await caller.say(
        {"type": "declined", "reason": "busy", "receipts": [{"id": "rcp_1"}]}
    )
    assert await line.receive(10) == Declined(reason="busy", receipts=[{"id": "rcp_1"}])
    assert release([line], {"chk_1": 1}) == {}


async def test_who_has_left_before_the_barrier_gets_no_seed_and_holds_nobody_up(
    hub: Hub, tmp_path: Path
) -> None:
    ids = ["chk_left", "chk_here"]
    callers = [await Caller.connect(hub.invite(one), tmp_path) for one in ids]
    lines = [await hub.expect(one, 10) for one in ids]
    for caller, line in zip(callers, lines, strict=True):
        await caller.say(READY)
        await line.receive(10)
    callers[0].leave()
    with pytest.raises(ConnectionLostError):
        await lines[0].receive(10)
    assert set(release(lines, dict.fromkeys(ids, 3))) == {"chk_here"}
    with pytest.raises(ConnectionLostError):
        await lines[0].send({"type": "end"})
    assert await callers[1].hear() == {"type": "seed", "seed": 3}


async def test_a_hub_that_ends_cuts_its_lines(tmp_path: Path) -> None:
    async with Hub() as hub:
        caller = await Caller.connect(hub.invite("chk_1"), tmp_path)
        await hub.expect("chk_1", 10)
        waiting = asyncio.create_task(hub.expect("chk_1"))
        await waiting
    assert await caller.hear() is None
