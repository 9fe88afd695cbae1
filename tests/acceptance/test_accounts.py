"""An instance whose jobs run under accounts: what its commands say, and what it
refuses.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.config.accounts import Account
from tests.support.accounts import real_account
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until
from tests.support.wheels import make_wheel, requirements


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with real_account() as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gy-jobs-", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance(GPUYARD_NODE__SIMULATE_GPUS="1x24") as made:
        made.home.create()
        yield made


def found_by_doctor(instance: TestInstance) -> str:
    items = instance.json("doctor")["items"]
    return next(item["found"] for item in items if item["what"] == "separation")


def test_jobs_of_a_project_share_a_workspace_of_their_account(
    instance: TestInstance, account: Account, folder: Path
) -> None:
    instance.home.settings.write_text(
        f'[node]\nrun_as = "{account.name}"\naccounts_folder = "{folder}/jobs"\n'
        f'[workspaces]\npath = "{folder}/workspaces"\n'
    )
    words = (
        "run",
        "--workspace",
        "corpus",
        "--workdir",
        account.home,
        "--",
        "sh",
        "-c",
    )
    instance.ok(*words, "id -un > $GPUYARD_WORKSPACE/who")
    assert instance.ok(*words, "cat $GPUYARD_WORKSPACE/who") == f"{account.name}\n"
    file = folder / "workspaces" / "default" / "corpus" / "who"
    assert file.stat().st_uid == account.uid

    (node,) = instance.json("nodes")["items"]
    # Simulated GPUs have no device files.
    assert node["separation"] == "accounts"
    assert found_by_doctor(instance) == "by accounts"
    assert "by agreement" not in instance.ok("gpus")


def test_without_accounts_separation_is_by_agreement(instance: TestInstance) -> None:
    instance.ok("up")
    (gpu,) = wait_until(lambda: instance.json("gpus")["items"], what="the node to join")
    assert gpu["separation"] == "agreement"
    assert "kept apart by agreement only" in instance.ok("gpus")
    whose = "root" if os.getuid() == 0 else "one user"
    expected = f"by agreement: all jobs run as {whose}, as the agent does"
    assert found_by_doctor(instance) == expected


def test_a_server_does_not_start_with_an_unknown_account(
    instance: TestInstance,
) -> None:
    instance.home.settings.write_text('[node]\nrun_as = "no-such-account"\n')
    refused = instance.run("up")
    assert refused.returncode != 0
    assert "node.run_as: names 'no-such-account', which is no account" in refused.stderr


def test_packages_are_installed_as_the_account(
    instance: TestInstance, account: Account, folder: Path
) -> None:
    instance.home.settings.write_text(
        f'[node]\nrun_as = "{account.name}"\naccounts_folder = "{folder}/jobs"\n'
    )
    make_wheel(folder / "wheels", "said_once", "words = 'to be'")
    file = folder / "requirements.txt"
    file.write_text(requirements(folder / "wheels", "said_once"))
    words = ("run", "--packages", str(file), "--workdir", account.home, "--clean-env")
    shows = "import os, sys, said_once; print(os.stat(sys.prefix).st_uid, os.getuid())"
    first = instance.ok(*words, "--", "python3", "-c", shows)
    assert first.startswith("gpuyard: installing the packages")
    assert first.splitlines()[-1] == f"{account.uid} {account.uid}"
    second = instance.ok(*words, "--", "python3", "-c", shows)
    assert second == f"{account.uid} {account.uid}\n"
