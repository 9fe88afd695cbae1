"""Another user of the machine at the address of a server that has gone: nobody tells
them the token.
"""

import asyncio
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gpuyard.client import resend
from gpuyard.client.aio import AsyncClient
from gpuyard.client.connection import Address
from gpuyard.client.light import Reader
from gpuyard.client.sync import Client
from gpuyard.config.dialling import SYSTEM_TLS, Tls, connect_to_member
from gpuyard.config.paths import Home
from gpuyard.config.proof import digest_of
from gpuyard.domain.errors import UnreachableError
from gpuyard.ledger.lease import Member
from gpuyard.node.calling import CallRefusedError, call, servers_of
from gpuyard.node.link import ServerAddress, open_link
from gpuyard.server import forwarding
from gpuyard.server.member_client import member_client
from gpuyard.server.sign_in.cookies import Cookies
from gpuyard.server.worker_tokens import WorkerClaim, issue
from tests.support.attacker import attacking
from tests.support.instance import TestInstance, make_instance
from tests.support.tls import tls_door
from tests.support.wait import wait_until

# Prints what each connection sends, and answers; with a second port, as the server at
# that port answers.
LISTEN = """
import socket, sys, threading
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
print(server.getsockname()[1])
def give_back(real, connection):
    while data := real.recv(65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
def serve(connection):
    with connection:
        real = None
        if len(sys.argv) > 2:
            real = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
            back = threading.Thread(target=give_back, args=(real, connection))
            back.start()
        while data := connection.recv(65536):
            print(data.hex())
            if real:
                real.sendall(data)
            else:
                connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
        if real:
            real.shutdown(socket.SHUT_WR)
            back.join()
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""
TOKEN = "a-token-that-nobody-may-see"


class Attacker:
    """What a listener of another user at `port` has been sent so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        self.port = int(process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        self._said: list[bytes] = []
        self._output = process.stdout
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._output:
            self._said.append(bytes.fromhex(line))

    def heard(self) -> bytes:
        return b"".join(self._said)

    def wait(self, times: int = 1) -> None:
        wait_until(lambda: len(self._said) >= times, what="somebody to dial the port")


@contextmanager
def listening(port: int = 0, real: int | None = None) -> Iterator[Attacker]:
    more = [] if real is None else [str(real)]
    with attacking(LISTEN, str(port), *more) as process:
        yield Attacker(process)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is sent three times, without waiting."""
    monkeypatch.setattr(resend, "pauses", lambda _: iter([0.0, 0.0]))


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        yield made


@pytest.fixture
def instance_here(
    instance: TestInstance, monkeypatch: pytest.MonkeyPatch
) -> TestInstance:
    """An instance that the SDK of this process finds by itself."""
    monkeypatch.delenv("GPUYARD_URL", raising=False)
    monkeypatch.setenv("GPUYARD_HOME", str(instance.home.root))
    instance.ok("up")
    return instance


def port_of(address: Address) -> int:
    port = httpx.URL(address.url).port
    assert port
    return port


@pytest.mark.usefixtures("impatient")
def test_clients_that_outlive_their_server_tell_its_port_nothing(
    instance_here: TestInstance,
) -> None:
    address = instance_here.address()

    async def awaited() -> None:
        async with AsyncClient() as client:
            await client.gpus()
            instance_here.kill("server")
            with listening(port_of(address)) as attacker:
                # It starts the server again, which gets another port.
                assert await client.gpus() == []
                assert attacker.heard() == b""

    asyncio.run(awaited())
    with Client() as client:
        client.gpus()
        address = instance_here.address()
        instance_here.kill("server")
        instance_here.home.server.unlink()  # as if it had been stopped
        with listening(port_of(address)) as attacker:
            with pytest.raises(UnreachableError):
                client.gpus()
            with pytest.raises(UnreachableError):
                list(client.events())
            with pytest.raises(UnreachableError, match="user 65534 listens there"):
                Reader(Address(address.url, address.token)).get("/api/v1/jobs", {})
            assert attacker.heard() == b""


def test_a_url_that_another_user_has_taken_is_refused(instance: TestInstance) -> None:
    with listening() as attacker:
        environment = {"GPUYARD_URL": attacker.url, "GPUYARD_TOKEN": TOKEN}
        for words in (["jobs"], ["top", "--once"]):
            done = instance.run(*words, env=environment)
            assert done.returncode == 5
            assert "user 65534 listens there" in done.stderr
        assert attacker.heard() == b""
        instance.run("jobs", env=environment | {"GPUYARD_INSECURE": "1"})
        attacker.wait()  # the test can fail
        assert TOKEN.encode() in attacker.heard()


def take_an_item(home: Home, token: str, said: list[str]) -> None:
    """As a worker of a batch calls its server."""
    path = "/api/v1/batches/b-1/take"
    try:
        call(partial(servers_of, home), token, path, {"attempt_id": "attempt_1"}, 20)
    except CallRefusedError as refused:
        said.append(str(refused))


def test_an_agent_and_a_worker_tell_a_stale_peer_nothing(
    instance_here: TestInstance,
) -> None:
    home = instance_here.home
    old = instance_here.address()
    token = home.token.read_bytes().strip()
    instance_here.kill("server")
    with listening(port_of(old)) as stale, listening() as peer:
        body = json.dumps({"urls": [peer.url], "token": token.decode()})
        home.peers.write_text(body)
        peer.wait(2)  # the agent
        agents_part = peer.heard()
        own = issue(digest_of(token.decode()), WorkerClaim("attempt_1", 1, "b-1"))
        said: list[str] = []
        asking = threading.Thread(
            target=take_an_item, args=(home, own, said), daemon=True
        )
        asking.start()
        wait_until(lambda: peer.heard() != agents_part, what="the worker to dial")
        assert peer.heard()
        assert token not in peer.heard()
        assert own.encode() not in peer.heard()
        assert stale.heard() == b""
        instance_here.ok("up")
        asking.join(60)
        assert "The attempt attempt_1, whose token this is, is over" in said[0]


def test_a_standby_tells_whoever_stands_at_the_leaders_address_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "_WAIT_FOR_LEADER_S", 0.5)

    async def no_answer(*_: Any) -> None:
        raise AssertionError("answered here")

    with listening() as attacker:
        standby: Any = SimpleNamespace(
            leads=False,
            token=TOKEN,
            url="http://127.0.0.1:1",
            tls=SYSTEM_TLS,
            admits=lambda _: True,
            election=SimpleNamespace(leader=Member("x", attacker.url, "")),
            sign_in=SimpleNamespace(cookies=Cookies("http://127.0.0.1:1")),
        )

        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(forwarding.Forwarding(no_answer, standby))
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.post(
                    "http://x/api/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}"}
                )

        assert asyncio.run(request()).status_code == 503
        attacker.wait()
        assert TOKEN.encode() not in attacker.heard()


def test_no_server_proves_itself_for_another_address(instance: TestInstance) -> None:
    """The attacker passes the challenge on to the real server."""
    instance.ok("up")
    real = instance.address()
    connect_to_member(real.url, real.token, SYSTEM_TLS).close()
    with listening(real=port_of(real)) as attacker:
        with pytest.raises(PermissionError, match="the proof is wrong"):
            connect_to_member(attacker.url, real.token, SYSTEM_TLS)
        attacker.wait()
        assert real.token.encode() not in attacker.heard()


def test_a_connection_that_another_process_accepted_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our server listened when the port was checked, and an attacker when it was
    dialled.
    """
    ours = socket.create_server(("127.0.0.1", 0))
    port = int(ours.getsockname()[1])
    dial = socket.create_connection
    taken: list[Any] = []

    def take_and_dial(*words: Any) -> socket.socket:
        ours.close()
        taken.append(attacker := listening(port))
        attacker.__enter__()
        return dial(*words)

    monkeypatch.setattr(socket, "create_connection", take_and_dial)
    try:
        with pytest.raises(UnreachableError, match="another process has begun"):
            Reader(Address(f"http://127.0.0.1:{port}", TOKEN)).get("/api/v1/jobs", {})
    finally:
        for attacker in taken:
            attacker.__exit__(None, None, None)


def test_only_tls_or_a_word_of_the_user_reaches_another_machine() -> None:
    with pytest.raises(Exception, match="GPUYARD_INSECURE=1"):
        Client(Address("http://gpuyard.example:8400", TOKEN))
    with pytest.raises(Exception, match="GPUYARD_INSECURE=1"):
        asyncio.run(AsyncClient(Address("http://10.0.0.1", TOKEN)).__aenter__())


def test_a_server_elsewhere_proves_itself_by_its_certificate(
    instance: TestInstance, tmp_path: Path
) -> None:
    instance.ok("up")
    real = instance.address()
    certificate = str(tmp_path / "server.pem")
    with tls_door(real.url, tmp_path, mutual=False) as door:
        for right in (Tls(certificate), Tls(str(tmp_path / "authority.pem"))):
            connect_to_member(door.address, real.token, right).close()
        wrong = (SYSTEM_TLS, Tls(str(tmp_path / "client.pem")), Tls(certificate, "x"))
        for tls in wrong:
            with pytest.raises(ssl.SSLCertVerificationError):
                connect_to_member(door.address, real.token, tls)
        assert asyncio.run(statuses(door.address, real.token, Tls(certificate))) == 200
        with pytest.raises(httpx.ConnectError):
            asyncio.run(statuses(door.address, real.token, SYSTEM_TLS))
        environment = {"GPUYARD_URL": door.address, "GPUYARD_CA_FILE": certificate}
        instance.ok("jobs", env=environment)
        del environment["GPUYARD_CA_FILE"]
        assert instance.run("jobs", env=environment).returncode == 5
        environment["GPUYARD_CA_FILE"] = str(tmp_path / "none.pem")
        said = instance.run("jobs", env=environment).stderr
        assert "GPUYARD_CA_FILE: is" in said


async def statuses(url: str, token: str, tls: Tls) -> int:
    """What another server and an agent, in turn, are answered at `url`."""
    address = ServerAddress(Path(), url, token, tls)
    async with member_client(url, token, tls) as client:
        answer = await client.get(f"{url}/healthz")
        async with open_link(address) as (_, writer):
            assert not writer.is_closing()
    return answer.status_code


def test_a_server_that_proves_itself_is_asked_on_the_same_connection(
    instance: TestInstance,
) -> None:
    instance.ok("up")
    real = instance.address()
    assert asyncio.run(statuses(real.url, real.token, SYSTEM_TLS)) == 200
    with pytest.raises(httpx.ConnectError, match="does not prove"):
        asyncio.run(statuses(real.url, "another token", SYSTEM_TLS))
