"""The shared instance of a machine: where commands find it, and whose socket they
accept.
"""

import os
import signal
import socket
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.cli.shared_service import settings_text
from gpuyard.client import connection
from gpuyard.client.connection import used_instance
from gpuyard.config.settings import Settings
from gpuyard.config.shared import HOME, SharedInstance, find_shared
from gpuyard.config.sharing import SharedSettings
from gpuyard.config.sockets import connected_socket, socket_of_group
from gpuyard.config.systemd import SharedService, unit_text
from gpuyard.domain.errors import InvalidInputError, UnreachableError
from tests.support.components import require

NOBODY = 65534


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tmp_path / "gpuyard.toml"


def service(settings: Path, account: str = "root") -> SharedService:
    return SharedService(settings, "users", account)


@pytest.mark.parametrize("account", ["root", "yard"])
def test_commands_find_what_the_installation_writes(
    settings: Path, account: str
) -> None:
    text = settings_text(service(settings, account))
    settings.write_text(text)
    path = Path("/run/gpuyard/gpuyard.sock")
    assert find_shared(settings) == SharedInstance(path, "users", account)
    read = Settings.model_validate(tomllib.loads(text))
    assert (read.shared.socket, read.shared.group) == (path, "users")
    assert read.node.run_as_submitter is (account == "root")


def test_without_a_section_there_is_none(settings: Path) -> None:
    assert find_shared(settings) is None
    settings.write_text("[server]\nport = 8400\n")
    assert find_shared(settings) is None


def test_settings_that_cannot_be_read_are_named(settings: Path) -> None:
    settings.write_text("[shared\n")
    with pytest.raises(InvalidInputError, match=r"gpuyard\.toml: is not valid TOML.*"):
        find_shared(settings)


def test_the_environment_comes_first(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.write_text(settings_text(service(settings)))
    monkeypatch.setattr(connection, "find_shared", lambda: find_shared(settings))
    monkeypatch.delenv("GPUYARD_URL", raising=False)
    monkeypatch.delenv("GPUYARD_HOME", raising=False)
    assert used_instance()
    monkeypatch.setenv("GPUYARD_HOME", "/home/ann/.gpuyard")
    assert used_instance() is None


def test_a_server_that_does_not_run_is_said_to(tmp_path: Path) -> None:
    shared = SharedInstance(tmp_path / "none.sock", "users")
    assert not shared.answers()
    with pytest.raises(UnreachableError, match="`systemctl start gpuyard`"):
        shared.check()


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"socket": "/run/x.sock"}, "has no group"),
        ({"group": "users"}, "has no socket"),
        ({"socket": "x.sock", "group": "users"}, "no absolute path"),
        ({"socket": f"/{'x' * 107}", "group": "users"}, "at most 107 bytes"),
    ],
)
def test_what_would_not_work_is_refused(section: dict[str, str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        SharedSettings.model_validate(section)


def test_the_unit_has_the_folders_and_the_account(settings: Path) -> None:
    text = unit_text(HOME, system=True, shared=service(settings, "yard"))
    lines = text.splitlines()
    assert f'Environment="GPUYARD_CONFIG={settings}"' in lines
    assert f"EnvironmentFile=-{settings.parent}/service.env" in lines
    assert "User=yard" in lines
    assert "SupplementaryGroups=users" in lines
    assert "User=" not in unit_text(HOME, system=True, shared=service(settings))


def test_the_socket_is_the_groups(tmp_path: Path) -> None:
    require("other-users", os.getuid() == 0)
    path = tmp_path / "gpuyard.sock"
    with socket_of_group(path, "users"):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o660
        assert status.st_gid == 100
    with pytest.raises(KeyError):
        socket_of_group(path, "no-such-group")


def test_another_account_at_the_socket_is_refused(tmp_path: Path) -> None:
    require("other-users", os.getuid() == 0)
    path = tmp_path / "gpuyard.sock"
    with listening_as(NOBODY, path):
        with pytest.raises(PermissionError, match=f"user {NOBODY} is at the other end"):
            connected_socket(path)
        with pytest.raises(PermissionError):
            connected_socket(path, NOBODY - 1)
        connected_socket(path, NOBODY).close()


@contextmanager
def listening_as(uid: int, path: Path) -> Iterator[None]:
    """A socket at which a process of another user listens."""
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    child = os.fork()
    if child == 0:
        os.setuid(uid)
        bound.listen()
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        bound.close()
