"""What the launcher decides before it builds anything."""

import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def launch(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("launch")


def test_a_python_that_has_all_is_used_as_it_is(
    launch: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "requirements.txt").write_text(
        f"pytest=={metadata.version('pytest')}\n"
    )
    monkeypatch.setattr(launch, "FOLDER", tmp_path)
    monkeypatch.setenv("GPUYARD_CACHE", str(tmp_path / "cache"))
    assert launch.environment_python() == Path(sys.executable)
    assert not (tmp_path / "cache").exists()
    assert capsys.readouterr().out == ""


def test_version_counts_and_local_build_does_not(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", {"torch": "2.13.0+cpu"}.__getitem__)
    assert launch._satisfied("torch==2.13.0\n")
    assert not launch._satisfied("torch==2.12.0\n")


def test_a_missing_package_does_not_satisfy(launch: ModuleType) -> None:
    assert not launch._satisfied("no-such-package==1.0\n")


def test_key_changes_with_what_the_environment_depends_on(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "_has_gpu", lambda: False)
    key = launch._key("torch==2.13.0")
    assert key == launch._key("torch==2.13.0")
    assert len(key) == 12
    assert key != launch._key("torch==2.14.0")
    monkeypatch.setattr(launch, "_has_gpu", lambda: True)
    assert key != launch._key("torch==2.13.0")


def test_nvidia_smi_means_a_gpu(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch._has_gpu()


@pytest.fixture
def bare_pip(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[str]:
    """A pip without any configuration."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return [sys.executable, "-m", "pip"]


@pytest.mark.parametrize("name", ["INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS"])
def test_an_index_of_the_users_own_is_seen(
    launch: ModuleType, bare_pip: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert not launch._own_index(bare_pip)
    monkeypatch.setenv(f"PIP_{name}", "/wheels")
    assert launch._own_index(bare_pip)


def test_an_index_in_pips_configuration_is_seen(
    launch: ModuleType,
    bare_pip: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "pip.conf").write_text("[install]\nfind-links = /wheels\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert launch._own_index(bare_pip)


@pytest.mark.parametrize(
    ("gpu", "own_index", "asks_for_cpu"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_the_cpu_build_is_asked_for_only_where_nothing_else_decides(
    launch: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gpu: bool,
    own_index: bool,
    asks_for_cpu: bool,
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(launch, "_run", lambda command, lock: commands.append(command))
    monkeypatch.setattr(launch, "_has_gpu", lambda: gpu)
    monkeypatch.setattr(launch, "_own_index", lambda pip: own_index)
    launch._build(tmp_path / "env", "torch==2.13.0\n", lock=0)
    assert commands[0][1:] == ["-m", "venv", str(tmp_path / "env")]
    assert (launch.CPU_INDEX in commands[1]) is asks_for_cpu


def test_a_python_without_venv_says_what_to_install(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        launch, "find_spec", lambda name: None if name == "ensurepip" else object()
    )
    with pytest.raises(launch.PreparationError, match="install python3-venv"):
        launch._build(tmp_path / "env", "torch==2.13.0\n", lock=0)
    assert not (tmp_path / "env").exists()


def test_a_wrong_argument_is_told_before_anything_is_built(
    launch: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["launch.py", "--steps", "none"])
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    monkeypatch.setattr(
        launch, "environment_python", lambda: pytest.fail("it built first")
    )
    with pytest.raises(SystemExit) as caught:
        launch.main()
    assert caught.value.code == 2
    assert "--steps" in capsys.readouterr().err
