"""With what an attempt runs."""

import os
from pathlib import Path

import pytest

from gpuyard.domain import wire
from gpuyard.node.package_environments import PackageEnvironment
from gpuyard.node.run_facts import package_facts, python_facts, run_facts

GPUS = [
    wire.GpuStatus("GPU-a", 0, "A100", 80_000, driver="550.1"),
    wire.GpuStatus("GPU-b", 1, "A10", 24_000, driver="550.1"),
]


def start(**fields: object) -> wire.StartAttempt:
    return wire.StartAttempt("a", 1, 1, "j", ["true"], {}, **fields)


def test_the_gpus_and_the_driver_are_those_of_the_attempt() -> None:
    found = run_facts(start(gpu_uuids=["GPU-b"]), "alpha", GPUS)
    assert (found["gpus"], found["driver"], found["host"]) == ("A10", "550.1", "alpha")
    assert "driver" not in run_facts(start(), "alpha", GPUS)


@pytest.mark.parametrize("command", ["env/bin/python3", "python3", "env/bin/torchrun"])
def test_the_python_of_an_environment_has_its_version(
    tmp_path: Path, command: str
) -> None:
    programs = tmp_path / "env/bin"
    programs.mkdir(parents=True)
    for name in ("python3", "torchrun"):
        (programs / name).touch(0o755)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr\nversion = 3.12.1\n")
    found = python_facts([command], {"PATH": str(programs)}, tmp_path)
    assert found["python"].startswith(f"3.12.1 {tmp_path}/env/bin/")


def test_what_is_no_python_has_none(tmp_path: Path) -> None:
    assert python_facts(["true"], {"PATH": os.defpath}, tmp_path) == {}
    assert python_facts(["no-such-program"], {"PATH": os.defpath}, tmp_path) == {}
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    (odd / "python3").touch(0o755)
    found = python_facts(["python3"], {"PATH": str(odd)}, tmp_path)
    assert found["python"].encode().endswith(b"python3")


def test_packages_are_listed_once_they_are_there(tmp_path: Path) -> None:
    packages = PackageEnvironment(tmp_path / "x.1")
    packages.folder.mkdir()
    (packages.folder / packages.list_name).write_text("numpy==2.1.0\n")
    assert package_facts(packages, None) == {}
    Path(f"{packages.folder}.complete").touch()
    assert package_facts(packages, None) == {"packages": "numpy==2.1.0"}
    assert package_facts(packages, os.getuid() + 1) == {}
    assert package_facts(None, None) == {}
