"""A shared workstation: an administrator installs one server, and the members of a
group use it without settings of their own.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpuyard.config.shared import HOME
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
    (hers,) = jobs(workstation, "bob", "--user", "ann")
    assert hers["user"] == "ann"
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
    assert said.split() == ["200", "409", "409", "409", "403"]
    said = workstation.ok("gpuyard", "doctor", user="bob")
    assert "one trust domain" in said
    assert "each job runs under its submitter's account" in said


def test_a_job_of_a_member_runs_the_code_as_submitted(
    workstation: OwnMachine,
) -> None:
    home = workstation.home_of("ann")
    workstation.ok("mkdir", "-m", "700", f"{home}/work", user="ann")
    workstation.ok("sh", "-c", f"echo echo first > {home}/work/job.sh", user="ann")
    go = f"{home}/go"
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
    assert "POST /api/v1/jobs" in workstation.ok("gpuyard", "audit", "-n", "1000")

    batch = ("gpuyard", "batch", "submit", "extract_keyframes", "/etc/hostname")
    refused = workstation.run(*batch, user="ann")
    assert refused.returncode == 4
    assert "No batch runs where jobs have accounts" in refused.stderr

    words = ("gpuyard", "run", "--workspace", "data", "true")
    workstation.ok(*words, user="ann")
    refused = workstation.run(*words, user="bob")
    assert "name a --project to have one of your own" in refused.stderr
    workstation.ok(*words[:2], "--project", "bob", *words[2:], user="bob")


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
