"""The layout of a home."""

import os
import stat
from pathlib import Path

import pytest

from gpuyard.config.paths import Home


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


def test_the_socket_fits_a_unix_address_however_deep_the_home_is(tmp_path: Path):
    short = Home(Path("/h"))
    deep = Home(tmp_path / ("d" * 120))
    assert short.socket == Path("/h/agent.sock")
    assert len(os.fsencode(deep.socket)) < 108
    assert deep.socket != Home(tmp_path / ("e" * 120)).socket
    assert deep.socket == Home(tmp_path / ("d" * 120)).socket
