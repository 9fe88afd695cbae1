"""The layout of a home."""

import os
import stat
from pathlib import Path

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.sockets import connected_socket, listening_socket


def test_the_home_is_the_environments_or_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path / "instance"))
    assert Home.find().root == tmp_path / "instance"
    monkeypatch.delenv("GPUYARD_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.find().root == tmp_path / ".gpuyard"


def test_a_relative_home_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUYARD_HOME", "instance")
    assert Home.find().root == tmp_path / "instance"


def test_a_home_is_its_owners_alone(tmp_path: Path):
    home = Home(tmp_path / "instance")
    home.create()
    home.create()
    for folder in (home.root, home.node, home.blobs, home.logs):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_home_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    root = tmp_path / "instance"
    root.mkdir()
    if os.getuid() == 0:
        os.chown(root, 65534, 65534)
    else:
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        Home(root).create()


def test_a_socket_may_stand_at_a_long_path_and_tells_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    path = tmp_path / ("d" * 120) / "agent.sock"
    path.parent.mkdir()
    path.write_text("left over")
    with listening_socket(path) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with connected_socket(path) as ours, server.accept()[0] as theirs:
            theirs.sendall(b"x")
            ours.setblocking(True)
            assert ours.recv(1) == b"x"
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        if me == 0:
            return  # root may be at the other end of every socket
        with pytest.raises(PermissionError, match=f"user {me} is at the other end"):
            connected_socket(path)


def test_a_home_that_others_may_write_to_is_closed(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir()
    root.chmod(0o775)
    Home(root).create()
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


def test_a_folder_for_all_users_is_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "like-tmp"
    root.mkdir()
    root.chmod(0o1777)
    monkeypatch.setattr("gpuyard.config.paths._FOR_ALL_USERS", {str(root)})
    with pytest.raises(PermissionError, match="is a folder for all users"):
        Home(root).create()
    assert list(root.iterdir()) == []
    assert stat.S_IMODE(root.stat().st_mode) == 0o1777
