"""`gpuyard service`: systemd runs the server, at boot and after a kill."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpuyard.config.systemd import AGENT_UNIT, UNIT, agent_unit_text
from tests.support.components import require
from tests.support.forkserver import REAL_PYTHON
from tests.support.instance import TestInstance, make_instance
from tests.support.joined import JoinedMachine, invite, nodes, wait_for_node
from tests.support.ports import free_port
from tests.support.wait import wait_until

ODD = 'a home with spaces, 100 % and "quotes" $HOME'
SYSTEMCTL = Path(__file__).parents[1] / "support" / "systemctl.py"


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[TestInstance]:
    """An instance whose systemctl starts what a unit says."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").symlink_to(SYSTEMCTL)
    with make_instance(
        PATH=f"{programs}:{os.environ['PATH']}",
        SYSTEMD_FAKE=str(tmp_path),
        XDG_CONFIG_HOME=str(tmp_path / "config"),
    ) as instance:
        yield instance
        instance.run("service", "remove", "--user")


def test_the_server_runs_as_a_service_and_again_after_a_kill(
    managed: TestInstance, tmp_path: Path
) -> None:
    # The words of its process are looked at.
    managed.environment[REAL_PYTHON] = "1"
    said = managed.ok("service", "install", "--user")
    assert "loginctl enable-linger" in said
    first = wait_until(lambda: managed.pid("server"), what="the server")
    wait_until(managed.home.server.exists, what="the server to serve")
    job_id = managed.submit(["sleep", "300"])
    managed.wait(job_id, "running")
    managed.kill("server")
    managed.ok("jobs")  # which would start one itself, without a service
    assert managed.pid("server") not in (None, first)
    command = Path(f"/proc/{managed.pid('server')}/cmdline").read_bytes()
    assert b"--foreground" in command, "systemd and nobody else has started it"
    assert managed.wait(job_id, "running").attempts[-1].number == 1
    assert managed.run("service", "install", "--user").returncode == 4
    managed.ok("service", "remove", "--user")
    wait_until(lambda: managed.pid("server") is None, what="the server to stop")
    assert managed.job(job_id).state == "running"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        "--user daemon-reload",
        "--user enable --now gpuyard.service",
        "--user disable --now gpuyard.service",
        "--user daemon-reload",
    ]
    assert not list(tmp_path.glob("config/**/*.service"))


def test_the_service_takes_over_from_the_server_of_a_command(
    managed: TestInstance, tmp_path: Path
) -> None:
    managed.ok("service", "install", "--user")
    wait_until(managed.home.server.exists, what="the server to serve")
    # As does `systemctl stop`.
    os.kill(int((tmp_path / "main").read_text()), signal.SIGTERM)
    wait_until(lambda: managed.pid("server") is None, what="the server to stop")
    job_id = managed.submit(["sleep", "300"])
    managed.wait(job_id, "running")
    ours = managed.pid("server")
    _systemctl(managed, "enable", "--now", UNIT)
    wait_until(
        lambda: managed.pid("server") not in (None, ours), what="the service to serve"
    )
    assert managed.wait(job_id, "running").attempts[-1].number == 1


@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_systemd_finds_no_fault_in_the_unit(scope: str, tmp_path: Path) -> None:
    with make_instance() as instance:
        environment = {"GPUYARD_HOME": str(tmp_path / ODD)}
        unit = instance.ok("service", "install", "--print", scope, env=environment)
        assert not (tmp_path / ODD).exists()
    verify(unit, UNIT, scope, tmp_path)


@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_systemd_finds_no_fault_in_the_unit_of_an_agent(
    scope: str, tmp_path: Path
) -> None:
    unit = agent_unit_text(tmp_path / ODD, system=scope == "--system")
    verify(unit, AGENT_UNIT, scope, tmp_path)


def verify(unit: str, name: str, scope: str, tmp_path: Path) -> None:
    """Let systemd say that a unit has no fault."""
    verifier = shutil.which("systemd-analyze")
    require("systemd", verifier is not None)
    assert verifier
    file = tmp_path / name
    file.write_text(unit)
    words = [verifier, "verify", scope, str(file)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    faults = [line for line in done.stderr.splitlines() if str(file) in line]
    assert (done.returncode, faults) == (0, []), done.stderr


def test_a_machine_that_joins_has_its_agent_as_a_service(
    managed: TestInstance, tmp_path: Path
) -> None:
    listen = {"GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}"}
    managed.ok("up", env=listen)
    machine = JoinedMachine(managed)
    there = {"GPUYARD_HOME": str(machine.home.root)}
    try:
        url, code = invite(managed, "--name", "lab2")
        (tmp_path / "code").write_text(f"{code}\n")
        line = ("join", "--user", url, "--code-file", str(tmp_path / "code"))
        # The invitation is still good after this.
        nobody = {"GPUYARD_NODE__RUN_AS": "nobody-of-this-name"}
        refused = managed.run(*line, env=there | nobody)
        assert refused.returncode == 2
        assert "node.run_as: " in refused.stderr
        said = managed.ok(*line, env=there)
        assert f"{AGENT_UNIT} is enabled: the agent runs now and at boot" in said
        wait_for_node(managed, "lab2")
        (service,) = psutil.Process(int((tmp_path / "main").read_text())).children()
        assert "gpuyard.server.joined_node" in service.cmdline()
        service.kill()
        wait_until(lambda: _others(tmp_path, service.pid), what="systemd to start it")
        assert nodes(managed)["lab2"]["state"] == "online"
    finally:
        if (tmp_path / "main").exists():
            _systemctl(managed, "disable", "--now", AGENT_UNIT)
        machine.end()


def _others(folder: Path, pid: int) -> list[psutil.Process]:
    """The children of the fake systemd that are not this process."""
    main = psutil.Process(int((folder / "main").read_text()))
    return [child for child in main.children() if child.pid != pid]


def _systemctl(instance: TestInstance, *words: str) -> None:
    command = ["systemctl", "--user", *words]
    subprocess.run(command, env=instance.environment, check=True)


def test_without_systemd_it_says_what_to_do(instance: TestInstance) -> None:
    nowhere = {"PATH": str(instance.work)}
    done = instance.run("service", "install", "--user", env=nowhere)
    assert done.returncode == 2
    assert "there is no systemctl" in done.stderr
    assert "gpuyard up --foreground" in done.stderr
