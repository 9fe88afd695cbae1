"""The packages of jobs through the command: installed once by the first job that needs
them, shared by the next, and never half there.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from uv import find_uv_bin

from gpuyard.client.sync import Client
from gpuyard.domain.errors import InvalidInputError
from tests.support.instance import TestInstance, make_instance
from tests.support.refusal import refused
from tests.support.wait import wait_until
from tests.support.wheels import make_source, make_wheel, requirements

INSTALLS = "gpuyard: installing the packages of requirements.txt"


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    # Neither the settings of pip of this machine nor its active environment count.
    plain = {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    with make_instance(**plain) as made:
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PIP_FIND_LINKS"):
            made.environment.pop(name, None)
        yield made


@pytest.fixture
def folder(instance: TestInstance, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own."""
    made = instance.work / str(request.node.name)
    made.mkdir()
    return made


def environments(instance: TestInstance) -> set[Path]:
    """The environments that are complete."""
    return set(instance.home.node.glob("packages/*/*.complete"))


def python(*statements: str) -> list[str]:
    return ["python3", "-c", "; ".join(statements)]


def test_the_first_job_installs_and_the_next_ones_share(
    instance: TestInstance, folder: Path
) -> None:
    wheels = folder / "wheels"
    make_wheel(wheels, "shared_words", "said = 'to be'")
    named = folder / "requirements.txt"
    named.write_text(requirements(wheels, "shared_words==1.0"))
    shows = python("import sys, shared_words", "print(sys.prefix, shared_words.said)")
    # Both at once: one of them builds.
    ids = [
        instance.ok("run", "-d", "--packages", "auto", "--", *shows, cwd=folder).strip()
        for _ in range(2)
    ]
    jobs = [instance.wait(job_id, "completed", "failed") for job_id in ids]
    logs = [instance.ok("logs", job.id) for job in jobs]
    assert sum(log.count(INSTALLS) for log in logs) == 1
    last_lines = {log.splitlines()[-1] for log in logs}
    (shown,) = last_lines
    (prefix, *said) = shown.split()
    assert said == ["to", "be"]
    assert (Path(prefix).stat().st_mode & 0o222) == 0, "jobs only read"

    with Client(instance.address()) as client:
        job = client.run(shows, packages=str(named))
        job.wait()
        assert instance.ok("logs", job.id) == f"{shown}\n"

    # What somebody has changed is not used again.
    os.utime(Path(prefix, "bin"))
    again = instance.ok("run", "--packages", str(named), "--", *shows)
    assert INSTALLS in again
    assert prefix not in again


def test_a_project_finds_its_modules_in_src(
    instance: TestInstance, folder: Path
) -> None:
    project = '[project]\nname = "own"\nversion = "1"\ndependencies = []\n'
    (folder / "pyproject.toml").write_text(project)
    (folder / "src/own").mkdir(parents=True)
    (folder / "src/own/__init__.py").write_text("said = 'mine'")
    words = python("import own", "print(own.said)")
    said = instance.ok("run", "--packages", "auto", "--", *words, cwd=folder)
    assert said.splitlines()[-1] == "mine"


def test_a_job_says_why_its_packages_were_not_installed(
    instance: TestInstance, folder: Path
) -> None:
    file = folder / "requirements.txt"
    file.write_text("no-such-package==1.0\n")
    environment = {
        "UV_DEFAULT_INDEX": "http://reader:first-password@127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
    }
    done = instance.run(
        *("run", "--retries", "2", "--packages", "requirements.txt"),
        *("--name", "unlucky", "--", *python("print('never')")),
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 1
    job = instance.json("show", "unlucky")
    assert (job["state"], job["reason"]) == ("failed", "packages_failed")
    assert len(job["attempts"]) == 1, "it is not tried again"
    message = job["attempts"][0]["message"]
    output = instance.ok("logs", "unlucky")
    for text in (message, output):
        assert "no-such-package" in text
        assert "could not be installed: uv pip install ended with" in text
        assert "first-password" not in text


def test_a_killed_build_leaves_nothing_half(
    instance: TestInstance, folder: Path
) -> None:
    gate = folder / "gate"
    waits = f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)"
    make_source(folder / "wheels", "slow_words", waits)
    file = folder / "requirements.txt"
    file.write_text(requirements(folder / "wheels", "slow_words"))
    before = environments(instance)
    words = ["run", "-d", "--packages", str(file), "--", *python("import slow_words")]
    job_id = instance.ok(*words).strip()
    builder = psutil.Process(_pid(job_id))
    wait_until(lambda: len(builder.children(recursive=True)) >= 2)
    builder.send_signal(signal.SIGKILL)
    assert instance.wait(job_id, "failed").reason == "killed_by_signal"
    assert environments(instance) == before

    gate.touch()
    job = instance.wait(instance.ok(*words).strip(), "completed", "failed")
    assert job.state == "completed", instance.ok("logs", job.id)
    assert len(environments(instance) - before) == 1


def _pid(job_id: str) -> int:
    """The process of a job."""

    def found() -> Any:
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("GPUYARD_JOB_ID") == job_id
            except psutil.Error:
                continue
            if ours and "build_packages.py" in " ".join(process.cmdline()):
                return process.pid
        return None

    return wait_until(found, what="the build to begin")


def test_what_cannot_be_had_is_refused_before(
    instance: TestInstance, folder: Path
) -> None:
    run = ("run", "--packages")
    words = ("--", "true")
    assert "there is no" not in instance.ok("run", "--packages", "none", *words)
    found = refused(instance, *run, "auto", *words, code=125)
    assert "no file that names packages" in found
    (folder / "environment.yml").write_text(
        "name: x\ndependencies:\n  - python=3.11\n  - cudatoolkit=11\n"
    )
    file = str(folder / "environment.yml")
    found = refused(instance, *run, file, *words, code=125)
    assert "environment.yml:4 `cudatoolkit=11` comes from conda alone" in found
    with Client(instance.address()) as client, pytest.raises(InvalidInputError) as info:
        client.run(["true"], packages="0" * 64)
    assert "there are no packages 0000" in str(info.value)


def test_a_person_hears_of_packages_that_are_not_installed(
    instance: TestInstance, folder: Path
) -> None:
    (folder / "requirements.txt").write_text("")
    done = instance.run("run", "--", *python("pass"), cwd=folder)
    assert "--packages auto does that" in done.stderr
    active = {"VIRTUAL_ENV": "/somewhere"}
    done = instance.run("run", "--", *python("pass"), cwd=folder, env=active)
    assert "--packages" not in done.stderr


def test_a_command_that_names_its_own_environment_gets_that(
    instance: TestInstance, folder: Path
) -> None:
    (folder / "requirements.txt").write_text("not-to-be-installed\n")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True
    )
    shows = ["-c", "import sys; print(sys.prefix)"]
    env = {"GPUYARD_DEFAULTS__PACKAGES": "auto"}
    words = ("run", "--", ".venv/bin/python", *shows)
    said = instance.ok(*words, cwd=folder, env=env)
    assert Path(said.strip()).resolve() == (folder / ".venv").resolve()


def test_a_lock_is_installed_as_it_is(instance: TestInstance, folder: Path) -> None:
    wheels = folder / "wheels"
    make_wheel(wheels, "locked_words", "said = 'first'")
    project = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\n'
    project += (
        f'dependencies = ["locked-words"]\n[tool.uv]\nfind-links = ["{wheels}"]\n'
    )
    (folder / "pyproject.toml").write_text(f"{project}no-index = true\n")
    uv = [find_uv_bin(), "lock", "--quiet", "--cache-dir", str(folder / "cache")]
    subprocess.run(uv, cwd=folder, check=True)
    make_wheel(wheels, "locked_words", "said = 'later'", version="2.0")
    shows = python("import locked_words", "print(locked_words.said)")
    output = instance.ok("run", "--packages", "auto", "--", *shows, cwd=folder)
    assert "installing the packages of uv.lock" in output
    assert output.splitlines()[-1] == "first"


def test_a_missing_python_is_named(instance: TestInstance, folder: Path) -> None:
    (folder / "requirements.txt").write_text("")
    (folder / ".python-version").write_text("3.99\n")
    done = instance.run("run", "--packages", "auto", "--", *python("pass"), cwd=folder)
    assert done.returncode == 1
    assert "3.99" in done.stdout
