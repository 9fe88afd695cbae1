"""The launcher, with a small package in the place of PyTorch and a program that only
tells what it was given.
"""

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard import templates
from tests.support.wait import wait_until

PACKAGE = "gpuyard-tests-stand-in"
TRAIN = """
import signal, sys
import gpuyard_tests_stand_in
print("trains with", sys.argv[1:], "USR1 ignored:", signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN)
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one wheel, of a package with one empty module."""
    folder = tmp_path_factory.mktemp("wheels")
    module = PACKAGE.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(
            f"{info}/RECORD",
            f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The template, asking for the small package."""
    folder = tmp_path / "nanogpt"
    templates.write("nanogpt", folder)
    (folder / "requirements.txt").write_text(f"{PACKAGE}==1.0\n")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture
def start(folder: Path, wheels: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the launcher with arguments and environment."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, **more: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "GPUYARD_CACHE": str(tmp_path / "cache"),
            "PIP_FIND_LINKS": str(wheels),
        }
        env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, **more}
        command = [sys.executable, "launch.py", *arguments]
        pipe = subprocess.PIPE
        # A session of its own, so that the test can also end pip, which outlives a
        # killed launcher.
        started.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdout=pipe,
                stderr=pipe,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start_one
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def environments(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "envs").glob("nanogpt-*"))


def test_an_environment_is_made_once(start: Start, tmp_path: Path) -> None:
    """Whoever comes meanwhile waits for it, and a signal to save does no harm."""
    first = start("--size", "gpt2", "--data", "a b.txt")
    wait_until(lambda: environments(tmp_path), what="the environment's folder")
    second = start()
    assert second.stdout
    waits = "another run is preparing the environment: waiting for it\n"
    assert second.stdout.readline() == waits
    first.send_signal(signal.SIGUSR1)
    output, error = first.communicate(timeout=100)
    lines = output.splitlines()
    assert lines[0] == f"preparing the environment (once): {PACKAGE} 1.0 …", error
    assert lines[1].startswith("environment ready in ")
    assert (
        lines[2]
        == "trains with ['--size', 'gpt2', '--data', 'a b.txt'] USR1 ignored: True"
    )
    (environment,) = environments(tmp_path)
    assert (environment / ".complete").exists()
    for later in (second, start()):
        output, _ = later.communicate(timeout=100)
        assert output == "trains with [] USR1 ignored: True\n"
    assert environments(tmp_path) == [environment]


def test_killed_while_building_it_is_built_anew(start: Start, tmp_path: Path) -> None:
    process = start()
    folder = wait_until(
        lambda: environments(tmp_path), what="the environment's folder"
    )[0]
    # Only what the launcher started is left, and for now it stands still.
    os.killpg(process.pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    (folder / "half-built").touch()
    assert not (folder / ".complete").exists()
    second = start()
    assert second.stdout
    assert (
        second.stdout.readline()
        == "another run is preparing the environment: waiting for it\n"
    )
    os.killpg(process.pid, signal.SIGCONT)
    output, error = second.communicate(timeout=100)
    assert "environment ready" in output, error
    assert output.splitlines()[-1].startswith("trains with")
    assert not (folder / "half-built").exists()
    assert (folder / ".complete").exists()


def test_an_environment_whose_python_is_gone_is_built_anew(
    start: Start, tmp_path: Path
) -> None:
    # Its name is the launcher's matter; it needs not be built to find its Python gone.
    process = start()
    folder = wait_until(
        lambda: environments(tmp_path), what="the environment's folder"
    )[0]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    python = folder / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.unlink(missing_ok=True)
    python.symlink_to("/gone/python3")
    (folder / ".complete").touch()
    output, _ = start().communicate(timeout=100)
    assert "environment ready" in output
    assert output.splitlines()[-1].startswith("trains with")


def test_a_package_that_is_not_to_be_had(
    start: Start, folder: Path, tmp_path: Path
) -> None:
    (folder / "requirements.txt").write_text(f"{PACKAGE}==2.0\n")
    process = start()
    output, error = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "trains with" not in output
    assert error.splitlines()[-1].startswith(
        "launch.py: error: the environment could not be prepared:"
    )
    assert not any(
        (environment / ".complete").exists() for environment in environments(tmp_path)
    )


def test_a_cache_that_cannot_be_written_is_told_in_one_line(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    process = start(GPUYARD_CACHE=str(tmp_path / "file"))
    _, error = process.communicate(timeout=100)
    assert process.returncode == 1
    assert error.count("\n") == 1
    assert error.startswith("launch.py: error: ")
