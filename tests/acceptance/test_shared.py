"""A shared workstation: an administrator installs one server, and the members of a
group use it without settings of their own.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.accounts import workers_socket
from gpuyard.config.proof import digest_of
from gpuyard.config.shared import HOME
from gpuyard.server.worker_tokens import WorkerClaim, issue
from tests.support.own_machine import OwnMachine, own_machine
from tests.support.wait import wait_until

SOCKET = "/run/gpuyard/gpuyard.sock"
# Sends requests to a socket, and prints the first line of each answer.
ASK = """
import socket, sys
for head in sys.argv[2:]:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(sys.argv[1])
    lines = [f"{head} HTTP/1.1", "Host: localhost", "Content-Length: 0"]
    if head.endswith("agent"):
        lines[2:] = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==",
        ]
    connected.sendall("\\r\\n".join([*lines, "", ""]).encode())
    print(connected.recv(4096).split(b" ")[1].decode())
"""


# As the worker of a batch does: prints the status of each answer.
ASK_WITH_TOKEN = """
import contextlib, http.client, json, socket, sys
path, token, calls = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
for method, target, attempt_id in calls:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"attempt_id": attempt_id}) if attempt_id else None
    with contextlib.suppress(BrokenPipeError):  # refused by the headers
        connection.request(method, target, body, headers)
    print(connection.getresponse().status)
"""
# Says who runs it; in a batch it waits for the file `go`.
SCRIPT = """
import json, os, pathlib, pwd, time
def load(args):
    def run(args, folder, progress):
        if "home" in args:
            home = pathlib.Path(args["home"])
            own = [os.environ["GPUYARD_ATTEMPT_ID"], int(os.environ["GPUYARD_ATTEMPT"])]
            (home / "new").write_text(json.dumps(own))
            (home / "new").rename(home / "attempt")
            while not (home / "go").exists():
                time.sleep(0.02)
        worker = pathlib.Path("/proc", str(os.getppid()))
        told = [(worker / name).read_bytes() for name in ("environ", "cmdline")]
        return {
            "file": __file__, "who": pwd.getpwuid(os.getuid()).pw_name,
            "text": pathlib.Path(args["path"]).read_text(),
            "token": any(b"worker.W" in text for text in told),
            "input": os.readlink(worker / "fd" / "0"),
        }
    return run
"""


@pytest.fixture
def machine() -> Iterator[OwnMachine]:
    """A machine with two people who may become members."""
    with own_machine() as machine:
        for name in ("ann", "bob"):
            machine.add_user(name)
        yield machine


@pytest.fixture(scope="module")
def workstation() -> Iterator[OwnMachine]:
    """A machine whose server runs as root, for ann and bob; there is an outsider,
    too.
    """
    with own_machine() as machine:
        for name in ("ann", "bob", "outsider"):
            machine.add_user(name)
        assert "usermod -aG gpuyard NAME" in install(machine)
        yield machine


def install(machine: OwnMachine, *words: str) -> str:
    """Install the server, and let ann and bob be members."""
    said = machine.ok("gpuyard", "service", "install", "--shared", *words)
    for name in ("ann", "bob"):
        machine.ok("usermod", "-aG", "gpuyard", name)
    return said


def jobs(machine: OwnMachine, user: str, *words: str) -> list[dict[str, Any]]:
    found = json.loads(machine.ok("gpuyard", "jobs", "--json", *words, user=user))
    return found["items"]


def test_members_share_a_server_and_jobs_run_as_they_are(
    workstation: OwnMachine,
) -> None:
    mode = workstation.ok("stat", "--format", "%a %U %G", SOCKET)
    assert mode == "660 root gpuyard\n"

    # Each job runs under its submitter's account, and in its folder, which is closed.
    assert workstation.ok("gpuyard", "run", "id", "-un", user="ann") == "ann\n"
    pretend = ("gpuyard", "run", "--project", "ann", "--env", "USER=ann", "--")
    assert workstation.ok(*pretend, "id", "-un", user="bob") == "bob\n"
    assert not (workstation.home_of("ann") / ".gpuyard").exists()
    hers = jobs(workstation, "bob", "--user", "ann")
    assert {job["user"] for job in hers} == {"ann"}
    assert "USER" in workstation.ok("gpuyard", "jobs", user="ann").splitlines()[0]

    # Members are one trust domain, and leave the server to root.
    job_id = workstation.ok("gpuyard", "run", "-d", "sleep", "600", user="ann").strip()
    command = ("gpuyard", "exec", job_id, "id", "-un")
    wait_until(
        lambda: workstation.run(*command, user="ann").stdout == "ann\n",
        what="a command beside her job",
    )
    refused = workstation.run(*command, user="bob")
    assert refused.returncode == 125
    assert f"{job_id} was submitted by ann; nobody else may run" in refused.stderr
    workstation.ok("gpuyard", "cancel", job_id, user="bob")
    requests = (
        "GET /api/v1/jobs",
        "POST /api/v1/server/stop",
        "POST /api/v1/ledger/backup",
        "POST /api/v1/ledger/prune",
        "GET /api/v1/agent",
    )
    said = workstation.ok(sys.executable, "-c", ASK, SOCKET, *requests, user="bob")
    assert said.split() == ["200", "403", "403", "403", "403"]
    said = workstation.ok("gpuyard", "doctor", user="bob")
    assert "one trust domain" in said
    assert "each job runs under its submitter's account" in said


def test_a_job_of_a_member_runs_the_code_as_submitted(
    workstation: OwnMachine,
) -> None:
    home = workstation.home_of("ann")
    workstation.ok("mkdir", "-m", "700", f"{home}/work", user="ann")
    workstation.ok("sh", "-c", f"echo echo first > {home}/work/job.sh", user="ann")
    go = f"{home}/release"
    first = ("sh", "-c", f"until test -e {go}; do sleep 0.05; done")
    before = workstation.ok("gpuyard", "run", "-d", "--", *first, user="ann").strip()
    place = ("--workdir", f"{home}/work")
    words = ("gpuyard", "run", "-d", *place, "--after", before, "--", "sh", "job.sh")
    job_id = workstation.ok(*words, user="ann").strip()
    workstation.ok("sh", "-c", f"echo echo second > {home}/work/job.sh", user="ann")
    assert "changed since: job.sh" in workstation.ok(
        "gpuyard", "show", job_id, user="ann"
    )

    # Nobody gets the code of others, by its digest or by its folder.
    shown = json.loads(workstation.ok("gpuyard", "show", "--json", job_id, user="bob"))
    digest = shown["spec"]["submitted_code"]
    document = json.dumps({"command": ["cat", "job.sh"], "submitted_code": digest})
    workstation.ok("sh", "-c", f"echo '{document}' > job.json", user="bob")
    refused = workstation.run("gpuyard", "submit", "job.json", user="bob")
    assert refused.returncode == 2
    assert f"there is no code {digest}" in refused.stderr
    refused = workstation.run("gpuyard", "run", *place, "--", "true", user="bob")
    assert "Permission denied" in refused.stderr

    workstation.ok("touch", go, user="ann")
    logs = ("gpuyard", "logs", "-f", job_id)
    assert workstation.ok(*logs, user="ann") == "first\n"
    shown = json.loads(workstation.ok("gpuyard", "show", "--json", job_id, user="ann"))
    assert shown["code"]["changed"] == ["job.sh"]
    assert shown["code"]["folder"]


def test_what_is_not_for_members_is_told(workstation: OwnMachine) -> None:
    refused = workstation.run("gpuyard", "audit", user="ann")
    assert refused.returncode == 4
    assert "`sudo gpuyard audit`" in refused.stderr
    job_id = workstation.ok("gpuyard", "run", "-d", "sleep", "600", user="ann").strip()
    workstation.ok("gpuyard", "cancel", job_id, user="ann")
    assert "POST /api/v1/jobs" in workstation.ok("gpuyard", "audit", "-n", "1000")

    words = ("gpuyard", "run", "--workspace", "data", "true")
    workstation.ok(*words, user="ann")
    refused = workstation.run(*words, user="bob")
    assert "name a --project to have one of your own" in refused.stderr
    workstation.ok(*words[:2], "--project", "bob", *words[2:], user="bob")


def add_script(machine: OwnMachine) -> None:
    """Add the script `who` to the settings, and start the server anew with them."""
    script = machine.folder / "scripts" / "who.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    section = f'[scripts.who]\nfile = "{script}"\ngpus = 0\n'
    machine.ok("sh", "-c", f"echo '{section}' >> /etc/gpuyard/gpuyard.toml")
    pid = machine.ok("cat", f"{HOME}/server.lock")
    machine.ok("sh", "-c", f"kill -9 {pid}")
    wait_until(
        lambda: machine.run("cat", f"{HOME}/server.lock").stdout != pid,
        what="another server",
    )


def submit_waiting_batch(machine: OwnMachine, name: str) -> str:
    """A batch of a closed file of this user, which waits for the file `go`."""
    home = machine.home_of(name)
    say = "umask 077; mkdir texts; echo mine > texts/1.txt"
    machine.ok("sh", "-c", say, user=name)
    words = ("gpuyard", "batch", "submit", "who", "texts", "--arg", f"home={home}")
    return machine.ok(*words, "-d", user=name).strip()


def claim_of(machine: OwnMachine, name: str, batch_id: str) -> WorkerClaim:
    """What the token of a worker says that waits."""
    file = machine.home_of(name) / "attempt"
    wait_until(file.exists, what=f"{name}'s worker")
    attempt_id, fence = json.loads(file.read_text())
    return WorkerClaim(attempt_id, fence, batch_id)


def ask_as_ann(
    machine: OwnMachine, token: str, calls: list[tuple[str, str, str]]
) -> list[int]:
    """The statuses of calls, each a method, a path and an attempt that it is for."""
    path = str(workers_socket(HOME.parent, HOME))
    words = (sys.executable, "-c", ASK_WITH_TOKEN, path, token, json.dumps(calls))
    return [int(line) for line in machine.ok(*words, user="ann").split()]


def ended(machine: OwnMachine, name: str, batch_id: str) -> dict[str, Any]:
    """The batch as it is in the end."""
    machine.run("gpuyard", "batch", "follow", batch_id, user=name)
    words = ("gpuyard", "batch", "show", batch_id, "--json")
    return json.loads(machine.ok(*words, user=name))


def test_scripts_and_batches_run_as_who_submitted_them(
    workstation: OwnMachine,
) -> None:
    add_script(workstation)
    batches = {name: submit_waiting_batch(workstation, name) for name in ("ann", "bob")}
    claims = {name: claim_of(workstation, name, batches[name]) for name in batches}
    token = issue(
        digest_of(workstation.ok("cat", f"{HOME}/token").strip()), claims["ann"]
    )

    # Her worker's token is worth its own calls, and only while its attempt lives.
    hers, his = (f"/api/v1/batches/{batches[name]}/take" for name in ("ann", "bob"))
    of_ann, of_bob = (claims[name].attempt_id for name in ("ann", "bob"))
    listing = ("GET", "/api/v1/jobs", "")
    calls = [
        listing,
        ("POST", hers, of_ann),
        ("POST", hers, of_bob),
        ("POST", his, of_bob),
        ("POST", his, of_ann),
    ]
    assert ask_as_ann(workstation, token, calls) == [403, 200, 403, 403, 403]
    assert ask_as_ann(workstation, token[:-1], [listing]) == [401]
    for name in batches:
        (workstation.home_of(name) / "go").touch()
    found = {name: ended(workstation, name, batches[name]) for name in batches}
    assert ask_as_ann(workstation, token, [("POST", hers, of_ann)]) == [403]
    audit = workstation.ok("gpuyard", "audit", "--json", "-n", "1000")
    assert '"forbidden"' in audit

    for name, batch in found.items():
        assert (batch["completed"], batch["user"]) == (1, name), batch
        uid = workstation.home_of(name).stat().st_uid
        results = Path(batch["results"])
        index = json.loads((results / "index.json").read_text())
        for entry in index["items"]:
            said = json.loads((results / entry["result"]).read_text())["output"]
            assert said["who"] == name
            # It runs the script as submitted, from a folder of the account's own.
            assert said["file"].startswith(f"{HOME.parent}/node_"), said["file"]
            # Its token came on its input, and is nowhere where others could find it.
            assert (said["token"], said["input"]) == (False, "/dev/null")
        assert {path.stat().st_uid for path in results.iterdir()} == {uid}

    # Root writes nothing where the submitter may not.
    words = ("gpuyard", "batch", "submit", "who", "texts", "--results", "/etc")
    refused = workstation.run(*words, user="ann")
    assert "Permission denied" in refused.stderr
    (batch_id,) = re.findall(r"^(who-texts-\S+) failed", refused.stdout, re.M)
    assert workstation.run("test", "-e", f"/etc/{batch_id}").returncode == 1

    once = workstation.home_of("bob") / "once.json"
    path = f"{workstation.home_of('bob')}/texts/1.txt"
    once.write_text(json.dumps({"script": "who", "args": {"path": path}}))
    job_id = workstation.ok("gpuyard", "submit", once.name, user="bob").strip()
    assert '"who": "bob"' in workstation.ok("gpuyard", "logs", "-f", job_id, user="bob")


def test_a_command_waits_for_a_server_that_systemd_starts_again(
    workstation: OwnMachine,
) -> None:
    workstation.ok("sh", "-c", f"kill -9 $(cat {HOME}/server.lock)")
    workstation.ok("gpuyard", "jobs", user="bob")


def test_others_learn_what_to_do(workstation: OwnMachine) -> None:
    refused = workstation.run("gpuyard", "jobs", user="outsider")
    assert refused.returncode == 4
    assert "`usermod -aG gpuyard outsider`" in refused.stderr
    own = ("env", f"GPUYARD_HOME={workstation.home_of('outsider')}/own", "gpuyard")
    assert workstation.ok(*own, "run", "id", "-un", user="outsider") == "outsider\n"
    # What root submits has no account that it could run under.
    refused = workstation.run("gpuyard", "run", "id")
    assert refused.returncode == 125
    assert "names root" in refused.stderr
    refused = workstation.run("gpuyard", "down", user="bob")
    assert refused.returncode == 4
    assert "systemctl stop gpuyard" in refused.stderr


def test_under_an_account_of_its_own_all_jobs_run_as_the_server(
    machine: OwnMachine,
) -> None:
    machine.ok("useradd", "--system", "--user-group", "yard")
    install(machine, "--account", "yard")
    mode = machine.ok("stat", "--format", "%a %U %G", SOCKET)
    assert mode == "660 yard gpuyard\n"
    words = ("gpuyard", "run", "--workdir", "/tmp", "id", "-un")
    assert machine.ok(*words, user="ann") == "yard\n"
    (job,) = jobs(machine, "bob")
    assert job["user"] == "ann"
    said = machine.ok("gpuyard", "doctor", user="bob")
    assert "by agreement: all jobs run as yard" in said
    machine.ok("gpuyard", "service", "remove", "--system")
    assert machine.run("test", "-e", "/etc/gpuyard/gpuyard.toml").returncode == 1
