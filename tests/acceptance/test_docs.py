"""Every command in the guides, run as it stands: a page at a time, in a folder and a
home of its own.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpuyard import templates
from gpuyard.config.accounts import Account
from gpuyard.providers.conformance import beside
from tests.support.accounts import real_account
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.ec2 import Ec2
from tests.support.fake_ecs import FakeEcs
from tests.support.forkserver import fast_python, start_fork_server
from tests.support.instance import TestInstance
from tests.support.kubernetes import Cluster, Node
from tests.support.nanogpt import fast_torch_python, torch_python
from tests.support.own_machine import OwnMachine, own_machine
from tests.support.playing_ec2 import playing_ec2
from tests.support.playing_ecs import ecs_environment, playing_ecs
from tests.support.playing_skypilot import (
    PlayedSkyPilot,
    playing_skypilot,
    skypilot_environment,
)
from tests.support.plugin import plugin_environment
from tests.support.s3 import Bucket
from tests.support.slurm import SlurmCluster
from tests.support.tke import Tke, tke_cluster

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/getting-started.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
# Setting up is what `make test` has done to come here.
SETUP = ("make setup", "source .venv/bin/activate")


@pytest.fixture
def tke() -> Iterator[Tke]:
    """Tencent, and the cluster that the page is about."""
    with tke_cluster() as tke:
        yield tke


@pytest.fixture
def ecs(tmp_path: Path) -> Iterator[FakeEcs]:
    """Alibaba's ECS, whose machines join."""
    with playing_ecs(tmp_path) as (ecs, _):
        yield ecs


@pytest.fixture
def skypilot(tmp_path: Path) -> Iterator[PlayedSkyPilot]:
    """SkyPilot, whose machines join."""
    with playing_skypilot(tmp_path / "skypilot") as played:
        yield played


@pytest.fixture
def playing_aws(ec2: Ec2, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """The environment of a server before AWS, whose machines join."""
    with playing_ec2(ec2, tmp_path):
        environment = ec2.environment
        (host, port) = environment["GPUYARD_SERVER__AGENTS_LISTEN"].split(":")
        # The one of the page leads nowhere.
        url = f"https://{host}:{int(port) + 1}"
        environment["GPUYARD_PROVIDERS__AWS__SERVER_URL"] = url
        yield environment


@pytest.fixture
def kubernetes() -> Iterator[Cluster]:
    """A cluster with the namespace that `rbac.yaml` makes."""
    with Cluster([Node("one", gpus=2), Node("two", gpus=2)]) as cluster:
        cluster.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuyard"}}
        )
        yield cluster


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> str:
    """One shell script of all console blocks: `$ ` begins a command, `> ` goes on with
    it.
    """
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert all(line.startswith(("$ ", "> ", ">")) for line in lines), (
        f"{page.name}: a line is no command"
    )
    return "\n".join(line[2:] for line in lines if line[2:] not in SETUP)


def with_gpuyard(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """`environment` in which `gpuyard` is a fork that starts at once, and the other
    programs are those of this Python's environment. `folder`: for the command.
    """
    folder.mkdir()
    program(folder / "gpuyard", f'exec {fast_python()} -m gpuyard.cli.entry "$@"')
    programs = f"{folder}:{Path(sys.executable).parent}"
    return {**environment, "PATH": f"{programs}:{environment['PATH']}"}


def fast_pytest() -> str:
    """A Python that runs pytest as a fork, which starts at once."""
    imports = ["pytest", "gpuyard.providers.conformance", "gpuyard.providers.registry"]
    return start_fork_server(sys.executable, imports, ["pytest"])


def python_with_torch(folder: Path) -> str:
    """What the launcher of nanogpt takes for a Python with PyTorch; how it makes one is
    in `tests/integration/templates/test_launch.py`.
    """
    templates.write("nanogpt", folder)
    return fast_torch_python(torch_python(folder))


def script_of(page: Path) -> str:
    """The page's commands, which stop at the first that fails."""
    script = f"set -eux -o pipefail\n{commands(page)}\n"
    # The page's last run has all tests; that the others have some is enough.
    return script.replace("pytest -q acme -k", "pytest -q --collect-only acme -k")


@pytest.fixture
def workstation() -> Iterator[OwnMachine]:
    """A machine with the user ann, who types what is not for `sudo`."""
    with own_machine() as machine:
        machine.add_user("ann")
        gpuyard = machine.programs / "gpuyard"
        gpuyard.rename(machine.programs / "real-gpuyard")
        program(machine.programs / "sudo", 'exec env AS_ROOT=1 "$@"')
        home = machine.home_of("ann")
        as_ann = "setpriv --reuid=ann --regid=ann --init-groups"
        program(
            gpuyard,
            f'[ $AS_ROOT ] && exec real-gpuyard "$@"\ncd {home}\n'
            f'exec {as_ann} env HOME={home} USER=ann real-gpuyard "$@"',
        )
        yield machine


@pytest.fixture
def account() -> Iterator[Account]:
    """An account under which jobs may run, whoever runs the tests."""
    with real_account() as made:
        yield made


@pytest.fixture
def open_folder() -> Iterator[str]:
    """A folder that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="gy-jobs-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield name


def program(path: Path, script: str) -> None:
    """Write a program for the shell."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def engine_of(page: Path, work: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """What its commands, run in `work`, need to find the engine that the page is
    about.
    """
    if page.stem == "add-a-provider":
        # Of the plugins in this Python's environment its tests need none, and they are
        # not to tidy up after other runs of pytest.
        alone = {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_DEBUG_TEMPROOT": str(work),
        }
        return plugin_environment(work / "site", work / "acme" / "src") | alone
    if page.stem == "aws":
        return request.getfixturevalue("playing_aws")
    if page.stem == "tencent":
        tke: Tke = request.getfixturevalue("tke")
        return {
            "TENCENTCLOUD_SECRET_ID": tke.secret_id,
            "TENCENTCLOUD_SECRET_KEY": tke.secret_key,
            "GPUYARD_PROVIDERS__TENCENT__ENDPOINT": tke.endpoint,
        }
    if page.stem == "alibaba":
        ecs: FakeEcs = request.getfixturevalue("ecs")
        return ecs_environment(ecs)
    if page.stem == "skypilot":
        skypilot: PlayedSkyPilot = request.getfixturevalue("skypilot")
        return skypilot_environment(skypilot)
    if page.stem in ("kubernetes", "use-a-provider"):
        kubernetes: Cluster = request.getfixturevalue("kubernetes")
        kubeconfig = str(kubernetes.kubeconfig(work / "kubeconfig"))
        return {"GPUYARD_PROVIDERS__KUBERNETES__KUBECONFIG": kubeconfig}
    if page.stem == "slurm":
        cluster: SlurmCluster = request.getfixturevalue("slurm")
        return cluster.environment
    if page.stem == "join" and os.getuid() == 0:
        account: Account = request.getfixturevalue("account")
        jobs = request.getfixturevalue("open_folder")
        return {"JOBS_ACCOUNT": account.name, "GPUYARD_NODE__ACCOUNTS_FOLDER": jobs}
    if page.stem == "completion":
        return {"HOME": str(work)}
    if page.stem == "service":
        programs = work / "bin"
        programs.mkdir()
        (programs / "systemctl").symlink_to(ROOT / "tests/support/systemctl.py")
        return {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SYSTEMD_FAKE": str(work),
            "XDG_CONFIG_HOME": str(work / "config"),
        }
    if page.stem == "storage":
        bucket: Bucket = request.getfixturevalue("bucket")
        bucket.s3.client.create_bucket(Bucket="example-models")
        return bucket.environment
    if page.stem == "docker":
        daemon: Dockerd = request.getfixturevalue("dockerd")
        # What the page names; there is no registry here.
        daemon.call("tag", IMAGE, "python:3.11-slim")
        return {"DOCKER_HOST": daemon.host}
    return {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.timeout(400)
def test_every_command_of_the_page_runs(
    page: Path, instance: TestInstance, request: pytest.FixtureRequest
) -> None:
    engine = engine_of(page, instance.work, request)
    environment = instance.environment | engine
    shell = ["bash", "-c", script_of(page)]
    if page.stem == "shared-workstation":
        workstation: OwnMachine = request.getfixturevalue("workstation")
        shell = workstation.words(*shell)
    else:
        folder = instance.work.parent / "bin"
        environment = with_gpuyard(environment, folder)
        if page.stem == "add-a-provider":
            program(folder / "pytest", f'exec {fast_pytest()} -m pytest "$@"')
        if page.stem == "nanogpt":
            python = python_with_torch(instance.work.parent / "nanogpt")
            program(folder / "python3", f'exec {python} "$@"')
    done = subprocess.run(
        shell,
        cwd=instance.work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    skipped = [int(count) for count in re.findall(r"(\d+) skipped", done.stdout)]
    # The template's provider runs no commands beside jobs.
    of_commands = len(beside.CASES) if page.stem == "add-a-provider" else 0
    assert set(skipped) <= {of_commands}, "a page's tests are all run"
    for example in blocks(page, "python"):
        run = subprocess.run(
            [sys.executable, "-c", example],
            cwd=instance.work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stderr
    if page.stem == "checkpoints":
        check_resume(instance, done.stdout)


def check_resume(instance: TestInstance, output: str) -> None:
    """The page of checkpoints shows a timeout and a resume."""
    assert "left with 124" in output
    job = instance.json("show", "count")
    assert len(job["attempts"]) == 2
    assert job["attempts"][1]["resumed_from"]
    assert int((instance.work / "saved.txt").read_text()) % 5 == 0
