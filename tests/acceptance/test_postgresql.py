"""Several servers on one PostgreSQL: all serve, one leads; whichever dies or is
stopped, nothing is lost or doubled.
"""

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    RefusedError,
    UnauthorizedError,
)
from tests.support.instance import TestInstance, make_instance
from tests.support.joined import JoinedMachine, joined_machine, nodes
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.proxy import proxied
from tests.support.wait import wait_until

# Says that it runs, waits for the test's word, says that it ends.
JOB = """
import os, pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with (folder / f"{name}.ran").open("a") as file:
    print("start", file=file, flush=True)
    print("running", flush=True)
    while not (folder / "go").exists():
        time.sleep(0.02)
    print("end", file=file, flush=True)
"""
DEATH_S = 60
# The first share listens where the variables say, and each other one finds it there.
SHARE = """
import os, pathlib, socket, sys, time
rank, count = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        server.settimeout(100)
        for _ in range(count - 1):
            with server.accept()[0] as other:
                print("met share", other.recv(10).decode(), flush=True)
else:
    for _ in range(1000):
        try:
            with socket.create_connection(place) as server:
                server.sendall(str(rank).encode())
            sys.exit(0)
        except OSError:
            time.sleep(0.1)
    sys.exit(1)
"""


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    return postgres.ledger()


@pytest.fixture
def pair(address: str) -> Iterator[tuple[TestInstance, TestInstance]]:
    """Two servers, each with its own home; the first leads."""
    with (
        make_instance(GPUYARD_LEDGER__URL=address) as first,
        make_instance(GPUYARD_LEDGER__URL=address) as second,
    ):
        first.ok("up")
        second.ok("up")
        assert (leads(first), leads(second)) == (True, False)
        # A server learns of another when it next reads the roll; stopped before that,
        # its agent would know of none.
        wait_until(
            lambda: peers(first) == peers(second) == 2,
            what="each home to know both servers",
        )
        yield first, second


def about(instance: TestInstance) -> dict:
    address = instance.address()
    headers = {"Authorization": f"Bearer {address.token}"}
    return httpx.get(f"{address.url}/api/v1/server", headers=headers, timeout=10).json()


def peers(instance: TestInstance) -> int:
    path = instance.home.peers
    return len(json.loads(path.read_text())["urls"]) if path.exists() else 0


def leads(instance: TestInstance) -> bool:
    with suppress(httpx.HTTPError, AssertionError):
        return about(instance)["leads"]
    return False


def witnessed(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.ran"
    return path.read_text().split() if path.exists() else []


def submit(client: Client, folder: Path, name: str, **fields):
    command = [sys.executable, "-I", "-S", "-c", JOB, str(folder), name]
    return client.run(
        {
            "name": name,
            "command": command,
            "workdir": str(folder),
            "idempotency_key": name,
            **fields,
        }
    )


def states(instance: TestInstance) -> dict[str, str]:
    with Client(instance.address()) as client:
        return {job.name: job.state.value for job in client.jobs()}


def test_a_job_runs_on_the_nodes_of_both_and_its_shares_find_each_other(pair):
    first, second = pair
    wait_until(
        lambda: (
            [node["state"] for node in first.json("nodes")["items"]]
            == ["online", "online"]
        ),
        what="both nodes",
    )
    with Client(first.address()) as client:
        command = [sys.executable, "-I", "-S", "-c", SHARE]
        resources = {"nodes": 2, "cpus": 1}
        job = client.run(
            {"command": command, "resources": resources, "workdir": str(second.work)}
        )
        done = job.wait(100)
        output = "".join(job.logs())
        assert done.state == "completed", f"{done.reason}: {output}"
        assert output.strip() == "met share 1"


def test_every_server_answers_and_one_schedules(pair):
    first, second = pair
    (second.work / "go").touch()
    with Client(second.address()) as client:
        heard: list[dict] = []
        listening = threading.Thread(
            target=listen, args=(client, "job.completed", heard)
        )
        listening.start()
        job = submit(client, second.work, "a")
        assert "running" in "".join(job.logs()), "the log comes from the leader"
        assert job.wait(30).state == "completed"
        lines = [line["text"] for line in client.log_lines(job.id, search="unn")]
        assert lines == ["running"], "the leader looks for lines"
        listening.join(30)
        assert heard[-1]["job_id"] == job.id, (
            "the standby's listeners hear of what the leader writes"
        )
        assert submit(client, second.work, "a").id == job.id
        with pytest.raises(GpuyardError, match="not found"):
            client.run({"command": ["no-such-program"]})
        stays = submit(client, first.work, "b")
        wait_until(
            lambda: stays.refresh().state == "running", what="the other job to run"
        )
        words = ("exec", stays.id, "--", "printenv", "GPUYARD_JOB_ID")
        assert second.ok(*words, input="").strip() == stays.id, (
            "the standby passes it on to the leader"
        )
        stays.cancel()
        assert stays.wait(30).state == "cancelled"
        wait_until(
            lambda: len(client.nodes()) == 2,
            what="the agent of each home to have joined",
        )
        refused = second.run(*words, input="")
        assert (refused.returncode, "is over" in refused.stderr) == (125, True)
    assert states(first) == states(second) == {"a": "completed", "b": "cancelled"}
    assert (
        httpx.get(
            f"{second.address().url}/api/v1/nodes",
            headers={"Authorization": "Bearer x"},
            timeout=60,
        ).status_code
        == 401
    )
    second.ok("down")
    assert leads(first)


def listen(client: Client, kind: str, heard: list[dict]) -> None:
    for event in client.events(after=0):
        heard.append(event)
        if event["kind"] == kind:
            return


def test_the_page_of_a_standby_is_live_and_stays_so_when_it_leads(pair):
    first, second = pair
    address = second.address()
    own = {"Origin": address.url}
    seen: list[str] = []
    with httpx.Client(base_url=address.url, timeout=None) as browser:
        form = {"token": address.token}
        answer = browser.post("/auth/token", data=form, headers=own)
        assert answer.status_code == 204, answer.text
        # The leader says what the nodes are, and what becomes of jobs.
        assert browser.get("/api/v1/nodes").status_code == 200
        body = {"command": ["true"], "name": "watched-1", "resources": {"cpus": 0.1}}
        foreign = {"Origin": "http://evil.example"}
        for headers in ({}, foreign, {"Origin": first.address().url}):
            answer = browser.post("/api/v1/jobs", json=body, headers=headers)
            assert answer.status_code == 403, answer.text
        answer = browser.post("/api/v1/jobs", json=body, headers=own)
        assert answer.status_code == 201, answer.text
        check_shells_of_a_page(first, browser, address.url)

        def look() -> None:
            watched = {"watch": ["/api/v1/jobs?name=watched-*", "/api/v1/nodes"]}
            stream = {"Accept": "text/event-stream"}
            with (
                suppress(httpx.HTTPError),
                browser.stream(
                    "GET", "/api/v1/events", params=watched, headers=stream
                ) as told,
            ):
                seen.extend(line for line in told.iter_lines() if "data: {" in line)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        wait_until(lambda: "watched-1" in "".join(seen), what="the job to be told of")
        wait_until(lambda: '"boot_id"' in "".join(seen), what="the nodes to be told")
        first.kill("server")
        answer = browser.post(
            "/api/v1/jobs",
            json={**body, "name": "watched-2", "idempotency_key": "2"},
            headers=own,
        )
        assert answer.status_code == 201, answer.text
        wait_until(lambda: leads(second), DEATH_S, "the standby to lead")
        wait_until(
            lambda: "watched-2" in "".join(seen), DEATH_S, "the next job to be told of"
        )
        assert looking.is_alive(), "nobody had to begin anew"
        browser.post("/auth/logout", headers=own)
        assert browser.get("/api/v1/whoami").status_code == 401
        second.kill("server")
        looking.join()


def test_the_leader_killed_while_jobs_run(pair):
    first, second = pair
    with Client(second.address()) as client:
        wait_until(
            lambda: len([n for n in client.nodes() if n["state"] == "online"]) == 2,
            what="both nodes",
        )
        whole = {"resources": {"cpus": client.nodes()[0]["cpus"]}}
        # One for each node, and one that waits.
        jobs = [submit(client, second.work, name, **whole) for name in "abc"]
        wait_until(
            lambda: sum(bool(witnessed(second.work, n)) for n in "abc") == 2,
            what="two jobs to run",
        )
        first.kill("server")
        # Waits for the next leader, which is this very server.
        late = submit(client, second.work, "late")
        assert leads(second)
        (second.work / "go").touch()
        for job in (*jobs, late):
            assert job.wait(DEATH_S).state == "completed"
            assert len(job.info.attempts) == 1
    first.ok("up")
    assert (leads(first), leads(second)) == (False, True)
    assert (
        states(first)
        == states(second)
        == dict.fromkeys(("a", "b", "c", "late"), "completed")
    )
    for name in ("a", "b", "c", "late"):
        assert witnessed(second.work, name) == ["start", "end"], name


PROGRAM = """
import os, pathlib, sys, time, helper
print(helper.WORD, os.environ["LEARNING_RATE"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""
RATE = "0.1234567"


def test_jobs_have_their_code_and_environment_on_every_node(pair, tmp_path: Path):
    """Those of a leader that has died, too."""
    first, second = pair
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORD = 'before'")
    go = second.work / "go"
    wait_until(lambda: online(second) == 2, what="both nodes")
    with Client(second.address()) as client:
        cpus = str(client.nodes()[0]["cpus"])

    def submitted() -> str:
        words = ["run", "-d", "--hold", "--cpus", cpus, "--", "train.py", str(go)]
        shell = {"LEARNING_RATE": RATE}
        done = second.run(*words, cwd=tmp_path, env=shell)
        assert "code" not in done.stderr, "no word of what it does not take along"
        return done.stdout.strip()

    *at_once, late = [submitted() for _ in range(3)]
    (tmp_path / "helper.py").write_text("WORD = 'after'")
    assert "changed since: helper.py" in first.ok("show", late)
    for job_id in at_once:
        second.ok("release", job_id)
    for job_id in at_once:
        said = lambda job_id=job_id: second.ok("logs", job_id)  # noqa: E731
        wait_until(said, what="its output")
        assert said() == f"before {RATE}\n"
        for instance in pair:
            shown = instance.ok("show", job_id)
            assert "as submitted" in shown
            assert "added LEARNING_RATE" in shown
            assert RATE not in instance.ok("show", job_id, "--json")
    nodes = {first.job(job_id).node for job_id in at_once}
    assert len(nodes) == 2, "one is not the node of the server that leads"
    go.touch()
    for job_id in at_once:
        second.wait(job_id)
    first.kill("keeper", "agent", "server")
    second.ok("release", late)
    assert second.wait(late, timeout=DEATH_S).state == "completed"
    assert second.ok("logs", late) == f"before {RATE}\n"
    assert leads(second)
    second.ok("ledger", "backup", str(tmp_path / "backup.db"))
    assert RATE.encode() not in (tmp_path / "backup.db").read_bytes()


def check_shells_of_a_page(
    leader: TestInstance, browser: httpx.Client, url: str
) -> None:
    """A page of the standby at `url` opens a shell in a job, and no other page does."""
    job = leader.submit(["sleep", "1000"], resources={"cpus": 0.1})
    leader.wait(job, "running")
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    address = f"ws{url.removeprefix('http')}/api/v1/jobs/{job}/exec"
    origins = {url: 101, "http://evil.example": 403, leader.address().url: 403}
    for origin, expected in origins.items():
        headers = {"Cookie": cookies, "Origin": origin}
        try:
            with connect(address, additional_headers=headers):
                status = 101
        except InvalidStatus as refused:
            status = refused.response.status_code
        assert status == expected, origin
    leader.ok("cancel", job)


def test_users_are_the_same_at_each_server(pair):
    leader, standby = pair
    leader.ok("user", "add", "ana")
    issued = leader.json("token", "new", "--user", "ana")
    with Client(leader.address()) as owner:
        job_id = submit(owner, leader.work, "stays").id
    leader.wait(job_id, "running")
    with Client(Address(standby.address().url, issued["token"])) as ana:
        assert ana.who_am_i().user == "ana"
        with pytest.raises(ForbiddenError, match="was submitted by"):
            ana.job(job_id).exec(["true"])
        leader.ok("token", "revoke", issued["id"])

        def is_refused() -> bool:
            with suppress(UnauthorizedError):
                list(ana.jobs())
                return False
            return True

        wait_until(is_refused, what="the standby to know that it is revoked")
    (leader.work / "go").touch()
    leader.wait(job_id)


def test_the_owners_token_is_replaced_at_each_server(pair):
    leader, standby = pair
    wait_until(lambda: online(leader) == 2, what="both nodes")
    with Client(leader.address()) as owner:
        # One for each node.
        whole = {"resources": {"cpus": owner.nodes()[0]["cpus"]}}
        jobs = [submit(owner, leader.work, name, **whole).id for name in "ab"]
    for job_id in jobs:
        leader.wait(job_id, "running")
    for instance in (standby, leader):
        other = leader if instance is standby else standby
        before = instance.address()
        elsewhere = Address(other.address().url, before.token)
        with (
            Client(elsewhere) as client,
            pytest.raises(RefusedError, match=f"the server at {before.url}"),
        ):
            client.rotate_owner_token()
        assert "is replaced" in instance.ok("token", "rotate")
        after = instance.address()
        for url in (instance.address().url, other.address().url):
            with Client(Address(url, after.token)) as client:
                assert client.who_am_i().user is None
        assert not admits(Address(before.url, before.token))
        wait_until(lambda at=elsewhere: not admits(at), what="the other to refuse it")
        # The standby passes it on with the new token.
        assert instance.json("user", "list")["items"] == []
    wait_until(lambda: online(standby) == 2, what="the agents to be back")
    (leader.work / "go").touch()
    for job_id in jobs:
        job = standby.wait(job_id)
        assert (job.state, len(job.attempts)) == ("completed", 1)


def admits(address: Address) -> bool:
    with Client(address) as client, suppress(UnauthorizedError):
        return bool(list(client.jobs()))
    return False


def test_a_leader_that_was_stopped_past_its_lease_writes_nothing(
    pair, postgres: PostgresServer, address
):
    first, second = pair
    with Client(first.address()) as client:
        runs = submit(client, first.work, "runs")
        wait_until(lambda: witnessed(first.work, "runs"), what="the job to run")
    stopped = first.pid("server")
    assert stopped
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_until(lambda: leads(second), DEATH_S, "the other to lead")
        epoch = about(second)["epoch"]
        asking = threading.Thread(
            target=ask_quietly, args=(first, "asked-while-stopped")
        )
        asking.start()
        # Long enough for its agent to have left it; the lease is long over.
        wait_until(
            lambda: online(second) == 2, DEATH_S, "both agents at the new leader"
        )
    finally:
        os.kill(stopped, signal.SIGCONT)
    asking.join()
    wait_until(
        lambda: about(first)["leader"] == second.address().url,
        what="the stopped one to know who leads",
    )
    assert not leads(first)
    assert first.pid("server") == stopped, "it went on as a standby"
    with Client(first.address()) as client:
        submit(client, first.work, "after")
        (first.work / "go").touch()
        assert client.job("after").wait(DEATH_S).state == "completed"
        assert client.job(runs.id).wait(DEATH_S).state == "completed"
    assert witnessed(first.work, "runs") == ["start", "end"]
    assert leads(second)
    assert about(second)["epoch"] == epoch
    rows = postgres.execute(
        "SELECT name, epoch FROM attempts JOIN jobs ON jobs.id = job_id ORDER BY name",
        address.rsplit("/", 1)[-1],
    )
    asked = [row for row in rows if row[0] == "asked-while-stopped"]
    assert [row for row in rows if row not in asked] == [
        ("after", epoch),
        ("runs", epoch - 1),
    ]
    assert all(row[1] == epoch for row in asked), (
        "if it was taken at all, then by the one that leads"
    )


def online(instance: TestInstance) -> int:
    with Client(instance.address()) as client:
        return sum(node["state"] == "online" for node in client.nodes())


def ask_quietly(instance: TestInstance, name: str) -> None:
    with suppress(GpuyardError), Client(instance.address()) as client:
        submit(client, instance.work, name)


@pytest.mark.parametrize("delivered", [True, False], ids=["committed", "not committed"])
def test_the_connection_cut_at_commit(address, delivered):
    """The server cannot know whether the commit was made; what it acknowledged is
    there, and once.
    """
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    with proxied(parts.hostname, parts.port) as proxy:
        url = address.replace(f":{parts.port}/", f":{proxy.port}/")
        with (
            make_instance(GPUYARD_LEDGER__URL=url) as instance,
            instance.client() as client,
        ):
            (instance.work / "go").touch()
            submit(client, instance.work, "before").wait(30)
            for number in range(5):
                proxy.cut_at(b"COMMIT", delivered=delivered)

                def asked(number=number) -> str | None:
                    with suppress(GpuyardError):
                        return submit(client, instance.work, f"job-{number}").id
                    return None

                first = wait_until(asked, what="an answer")
                assert not proxy.armed
                assert wait_until(asked, what="the same again") == first
            for number in range(5):
                instance.wait(client.job(f"job-{number}").id)
            assert states(instance) == dict.fromkeys(
                ["before", *(f"job-{n}" for n in range(5))], "completed"
            )
            for number in range(5):
                assert witnessed(instance.work, f"job-{number}") == ["start", "end"]


def test_the_database_is_started_anew_while_a_job_runs(
    address, postgres: PostgresServer
):
    with (
        make_instance(GPUYARD_LEDGER__URL=address) as instance,
        instance.client() as client,
    ):
        job = submit(client, instance.work, "a")
        wait_until(lambda: witnessed(instance.work, "a"), what="the job to run")
        postgres.stop(signal.SIGQUIT)
        (instance.work / "go").touch()
        wait_until(
            lambda: witnessed(instance.work, "a") == ["start", "end"],
            what="the job to end without a database",
        )
        postgres.start()
        assert instance.wait(job.id).state == "completed"
        assert submit(client, instance.work, "b").wait(DEATH_S).state == "completed"
    assert witnessed(instance.work, "a") in (["start", "end"], [])


def test_a_machine_that_has_joined_follows_the_leader(address):
    # Nobody but the leader listens there, as behind an address that they share.
    there = {
        "GPUYARD_LEDGER__URL": address,
        "GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}",
    }
    with make_instance(**there) as first, make_instance(**there) as second:
        first.ok("up")
        refused = second.run("up")
        assert refused.returncode != 0
        assert "server.agents_listen: needs the key by which mach" in refused.stderr
        shutil.copytree(first.home.authority, second.home.authority)
        second.ok("up")
        assert (leads(first), leads(second)) == (True, False)
        own = wait_until(lambda: _two_nodes(first), what="both nodes")
        for node in own:
            first.ok("nodes", "cordon", node)
        with joined_machine(second, "lab2") as machine:
            _check_follows(first, second, machine)


def _two_nodes(instance: TestInstance) -> list[str]:
    """The ids of the nodes of both servers; empty before both are known. Both have the
    name of this machine.
    """
    known = [node["id"] for node in instance.json("nodes")["items"]]
    return known if len(known) == 2 else []


def _check_follows(
    first: TestInstance, second: TestInstance, machine: JoinedMachine
) -> None:
    """The leader dies while a job runs on the machine; that one ends, and another one
    runs there.
    """
    (there,) = {node["id"] for node in nodes(second).values() if not node["cordoned"]}
    job = _begin(second, "a")
    wait_until(lambda: witnessed(second.work, "a"), what="the job to run")
    first.kill("server")
    wait_until(lambda: leads(second), what="the next leader")
    (second.work / "go").touch()
    for one in (job, _begin(second, "b")):
        ended = second.wait(one)
        assert ended.state == "completed", machine.refusal()
        assert (len(ended.attempts), ended.node) == (1, there)
    for name in "ab":
        assert witnessed(second.work, name) == ["start", "end"]


def _begin(instance: TestInstance, name: str) -> str:
    """Submit a job that may run on any machine; its id."""
    program = (sys.executable, "-I", "-S", "-c", JOB, str(instance.work), name)
    return instance.ok("run", "--detach", "--name", name, "--", *program).strip()
