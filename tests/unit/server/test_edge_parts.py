"""The parts of the server's edge, each by itself."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from gpuyard.config.settings import ServerSettings
from gpuyard.domain.errors import (
    GpuyardError,
    ServerBusyError,
    TooLargeError,
    TooManyRequestsError,
    TooSlowError,
    WrongHostError,
)
from gpuyard.server.audit import AuditLog
from gpuyard.server.bodies import Bodies, Body
from gpuyard.server.callers import Peer, is_own_user, uid_of_peer
from gpuyard.server.guesses import AT_ONCE, FORGET_S, FREE, Guesses
from gpuyard.server.headers import secured
from gpuyard.server.host_names import HostNames

SUBMIT = {"type": "http", "method": "POST", "path": "/api/v1/jobs"}
CHUNKED = {b"transfer-encoding": b"chunked"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- Names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8400",
        "10.1.2.3:8400",
        "[::1]:8400",
        "localhost:8400",
        "LOCALHOST.",
        "app.localhost",
        "gpuyard",
        "gpuyard.example.org",
        "Own.Example.org:443",
    ],
)
def test_own_names_are_admitted(host: str) -> None:
    names = HostNames(["gpuyard.example.org"], ["https://own.example.org"])
    names.check(host.encode())
    names.check(host.encode())


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "gpuyard.example.org.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8400",
        "[evil.example]:80",
        "\xff.example",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    names = HostNames(["gpuyard.example.org"], ["http://127.0.0.1:8400"])
    for _ in range(2):
        with pytest.raises(WrongHostError):
            names.check(host.encode("latin-1"))


# --- Bodies -------------------------------------------------------------------------


def opened(bodies: Bodies, *parts: bytes) -> Body:
    """The body of a submission that comes in these parts, and then no further."""
    waiting = list(parts)

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": part != b""}

    body = bodies.of(SUBMIT, CHUNKED, receive)
    assert body
    return body


async def read(body: Body) -> GpuyardError | None:
    """Read to the end, or to the fault."""
    try:
        while not body.ended:
            await body()
    except GpuyardError as error:
        return error
    return None


def test_all_bodies_together_are_limited() -> None:
    async def scenario() -> None:
        bodies = Bodies(ServerSettings(max_bodies_mb=0.003))
        first = opened(bodies, bytes(2000), b"")
        assert await read(first) is None
        second = opened(bodies, bytes(2000), b"")
        assert isinstance(await read(second), ServerBusyError)
        second.close()
        first.close()
        assert await read(opened(bodies, bytes(2000), b"")) is None

    asyncio.run(scenario())


def test_a_body_is_limited_whatever_it_says() -> None:
    async def scenario() -> None:
        bodies = Bodies(ServerSettings(max_body_mb=0.003))
        body = opened(bodies, bytes(2000), bytes(2000), b"")
        error = await read(body)
        assert isinstance(error, TooLargeError)
        with pytest.raises(TooLargeError):
            await body()
        with pytest.raises(TooLargeError):
            bodies.of(SUBMIT, {b"content-length": b"3001"}, body)
        assert bodies.of(SUBMIT, {b"content-length": b"0"}, body) is None

    asyncio.run(scenario())


def test_a_body_that_stops_coming_is_too_slow() -> None:
    async def scenario() -> None:
        bodies = Bodies(ServerSettings(slow_s=0.01))
        assert isinstance(await read(opened(bodies, b"{")), TooSlowError)

    asyncio.run(scenario())


# --- Guesses ------------------------------------------------------------------------


def test_wrong_tokens_are_forgiven_and_others_are_not_suspected() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    for _ in range(10 * FREE):
        guesses.wrong(("a", 1))
    assert guesses.suspects(("a", 1))
    assert not guesses.suspects(("a", 2))
    clock.now += FREE * FORGET_S + 0.1
    assert not guesses.suspects(("a", 1))


def test_few_guesses_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.server.guesses.PAUSE_S", 0.01)

    async def scenario() -> None:
        guesses = Guesses()
        key = ("a", 1)
        tries = [guesses.wait(key) for _ in range(AT_ONCE + 2)]
        found = await asyncio.gather(*tries, return_exceptions=True)
        refused = [one for one in found if isinstance(one, TooManyRequestsError)]
        assert len(refused) == 2
        await guesses.wait(key)

    asyncio.run(scenario())


def test_many_clients_are_not_remembered_for_ever() -> None:
    guesses = Guesses(Clock())
    for number in range(10_000):
        guesses.wrong((str(number), None))
    assert len(guesses._records) <= 4096  # pyright: ignore[reportPrivateUsage]


# --- Callers ------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_knows_whose_socket_it_is(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        with socket.create_connection(listener.getsockname()[:2]) as client:
            ends = client.getsockname()[:2], client.getpeername()[:2]
            assert uid_of_peer(*ends) == os.getuid()
        nobody = (address, 1)
        assert uid_of_peer(nobody, ends[1]) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_nobody_has_a_socket_that_is_closed(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        ends = client.getsockname()[:2], client.getpeername()[:2]
        client.close()
        assert uid_of_peer(*ends) is None
        caller = Peer(*ends)
        assert (caller.user, is_own_user(caller)) == (None, False)


def test_who_may_choose_an_address_is_one_client() -> None:
    local = [Peer((address, 1), None) for address in ("127.0.0.1", "127.9.9.9", "::1")]
    assert len({caller.key for caller in local}) == 1
    first = Peer(("2001:db8:1:2::1", 1), None)
    second = Peer(("2001:db8:1:2:3::9", 2), None)
    other = Peer(("2001:db8:1:3::1", 1), None)
    assert first.key == second.key != other.key


# --- Headers ------------------------------------------------------------------------


def test_an_answer_that_is_passed_on_has_each_header_once() -> None:
    once = secured([(b"content-security-policy", b"own")])
    assert secured(once) == once
    assert once[0] == (b"content-security-policy", b"own")


# --- The audit log ------------------------------------------------------------------


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_happens_again_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    audit = AuditLog(tmp_path / "audit.log", ServerSettings(), lambda: "secret", clock)
    guesser = Peer(("192.0.2.1", 1), None)
    for _ in range(100):
        audit.refused(guesser, "GET /secret", "unauthorized")
    assert [line["count"] for line in lines(tmp_path / "audit.log")] == [1]
    clock.now += 61
    audit.flush()
    first, second = lines(tmp_path / "audit.log")
    assert (second["count"], second["since"], second["at"]) == (99, 1000.0, 1061.0)
    assert first["what"] == "GET /***"
    assert (first["who"], first["from"]) == (None, "192.0.2.1")


def test_clients_without_end_are_counted_in_bounded_memory(tmp_path: Path) -> None:
    audit = AuditLog(
        tmp_path / "audit.log", ServerSettings(), lambda: "secret", Clock()
    )
    for number in range(3000):
        audit.admitted(Peer((f"192.0.2.{number}", 1), None))
    assert len(audit._counts) <= 1024  # pyright: ignore[reportPrivateUsage]


def test_a_full_file_becomes_an_older_one(tmp_path: Path) -> None:
    settings = ServerSettings(audit_mb=0.0005, audit_files=2)
    audit = AuditLog(tmp_path / "audit.log", settings, lambda: "secret", Clock())
    for number in range(40):
        audit.act(Peer(None, None), f"PUT /{number}", "200")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert set(names) - {"audit.log"} == {"audit.log.1", "audit.log.2"}
    kept = [line["what"] for name in reversed(names) for line in lines(tmp_path / name)]
    assert kept == [f"PUT /{number}" for number in range(40 - len(kept), 40)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    audit = AuditLog(tmp_path / "audit.log", ServerSettings(), lambda: "secret")
    audit.act(Peer(None, None), "PUT /x", "200")
    assert (tmp_path / "elsewhere").read_bytes() == b""
