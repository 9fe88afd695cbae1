"""`local`: the socket, the keeper it keeps alive, and what it refuses before it could
only fail.
"""

import os
import stat

import pytest

from gpuyard.config.paths import Home
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.domain.validation import parse_spec
from gpuyard.providers import local
from gpuyard.providers.local import LocalProvider, keeper_alive
from tests.support.node import Loop, Recorder, gone, make_node, wait_for


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.close()


def test_the_socket_is_its_owners_alone_and_a_stale_one_is_replaced(
    tmp_path, loop, monkeypatch
):
    monkeypatch.setattr(local, "start_keeper", lambda home: None)
    home = Home(tmp_path / "home")
    for _ in range(2):
        provider = LocalProvider({"home": home.root})
        loop.run(provider.start(Recorder()))
        mode = home.socket.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        loop.run(provider.close())
        assert not home.socket.exists()
        home.socket.write_text("left behind")


def test_a_killed_keeper_is_replaced():
    with make_node() as node:
        keeper = node.pid("keeper")
        node.kill("keeper", "agent")
        node.linked(2)
        assert node.pid("keeper") != keeper
        assert keeper_alive(node.home)


def test_a_keeper_that_lives_is_left_alone():
    with make_node() as node:
        keeper = node.pid("keeper")
        agent = node.pid("agent")
        node.close()
        node.open()
        node.linked(2)
        assert (node.pid("keeper"), node.pid("agent")) == (keeper, agent)


def test_dismissed_agents_leave_with_their_keeper():
    with make_node() as node:
        keeper = node.pid("keeper")
        agent = node.pid("agent")
        node.provider._guard.cancel()
        node.loop.run(node.provider.dismiss())
        gone(agent)
        gone(keeper)
        # Who looks whether the lock is held holds it for a moment.
        wait_for(lambda: not keeper_alive(node.home), "the lock of the keeper")


def test_a_keeper_that_cannot_be_started_is_tried_again(tmp_path, loop, monkeypatch):
    monkeypatch.setattr(local, "_KEEPER_CHECK_S", 0.01)
    tries = []

    def start(home):
        tries.append(home)
        raise OSError("no space left")

    monkeypatch.setattr(local, "start_keeper", start)
    provider = LocalProvider({"home": tmp_path / "home"})
    loop.run(provider.start(Recorder()))
    wait_for(lambda: len(tries) >= 3, "further tries")
    loop.run(provider.close())


@pytest.fixture
def check(tmp_path, loop):
    """Checks a spec whose workdir is `tmp_path`; the fault, None without one."""
    provider = LocalProvider({"home": tmp_path / "home"})

    def check(*command, **fields):
        spec = parse_spec({"command": list(command), "workdir": str(tmp_path)} | fields)
        try:
            loop.run(
                provider.check(
                    spec.command[:2], spec.workdir, spec.environment.get("PATH")
                )
            )
        except InvalidInputError as error:
            (fault,) = error.faults
            return fault
        return None

    return check


def script(tmp_path, name, mode=0o755):
    path = tmp_path / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_what_can_run_passes(check, tmp_path):
    script(tmp_path, "run.sh")
    script(tmp_path, "train.py", 0o644)
    assert check("true") is None
    assert check("./run.sh") is None
    assert check(str(tmp_path / "run.sh")) is None
    assert check("python3", "train.py", "--epochs", "3") is None
    assert check("python3", "-m", "nothing.py") is None
    assert check("python3", "-c", "print(1)") is None
    assert check("run.sh", environment={"PATH": str(tmp_path)}) is None
    assert check("true", workdir=None) is None


def test_a_job_that_is_no_command_is_not_looked_at(check):
    assert check(command=[], prompt="hello", model="m", workdir=None) is None


@pytest.mark.parametrize(
    ("command", "fields", "field", "fault", "remedy"),
    [
        (["true"], {"workdir": "relative"}, "workdir", "'relative'", "absolute"),
        (
            ["true"],
            {"workdir": "/no/such/folder"},
            "workdir",
            "is not a folder",
            "create",
        ),
        (
            ["no-such-program"],
            {},
            "command[0]",
            "no-such-program is not found",
            "spelling",
        ),
        (["./missing.sh"], {}, "command[0]", "./missing.sh is not found", "spelling"),
        (["./plain.sh"], {}, "command[0]", "not executable", "bash ./plain.sh"),
        (["plain.ipynb"], {}, "command[0]", "not executable", "nbconvert"),
        (["./plain"], {}, "command[0]", "not executable", "chmod +x ./plain"),
        (["program"], {}, "command[0]", "not on the PATH", "./program"),
        (["LR=1"], {}, "command[0]", "LR=… is a variable", "--env LR=VALUE"),
        (["CUDA_VISIBLE_DEVICES=0"], {}, "command[0]", "a variable", "--gpus 1"),
        (
            ["true"],
            {"environment": {"PATH": "/no/such/folder"}},
            "command[0]",
            "true is not found",
            "spelling",
        ),
        (["python3", "missing.py"], {}, "command[1]", "no script missing.py", "path"),
        (["bash", "missing.sh"], {}, "command[1]", "no script missing.sh", "path"),
    ],
)
def test_what_could_only_fail_is_refused_with_the_field_and_a_remedy(
    check, tmp_path, command, fields, field, fault, remedy
):
    for name in ("plain.sh", "plain.ipynb", "plain"):
        script(tmp_path, name, 0o644)
    script(tmp_path, "program", 0o755)
    found = check(*command, **fields)
    assert found
    assert found.field == field
    assert fault in found.fault
    assert remedy in found.remedy


def test_a_script_that_may_not_be_read_is_refused(check, tmp_path, monkeypatch):
    script(tmp_path, "secret.py", 0o000)
    if os.getuid() == 0:  # whom no mode keeps out
        allowed = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode: mode != os.R_OK and allowed(path, mode)
        )
    found = check("python3", "secret.py")
    assert found
    assert (found.field, "chmod u+r" in found.remedy) == ("command[1]", True)


def test_a_job_of_several_nodes_that_are_not_named_is_refused(tmp_path, loop):
    provider = LocalProvider({"home": tmp_path})
    order = AttemptOrder(attempt_id="a", name="gang", command=("true",), nodes=2)
    with pytest.raises(ProviderError, match="nodes is 2, and it is not said which"):
        loop.run(provider.submit_attempt(order))
