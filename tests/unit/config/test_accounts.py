"""Whose account a job gets, and which accounts are refused."""

import os
import pwd
from pathlib import Path

import pytest

from gpuyard.config.accounts import Accounts
from gpuyard.config.settings import NodeSettings
from gpuyard.domain.errors import InvalidInputError

ALL = "CapEff:\t000001ffffffffff\n"
# Everywhere there is an account of a service, and it is not a person's.
SERVICE = "daemon"


@pytest.fixture
def root_of_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host where this process is root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return host(tmp_path, ALL)


def host(folder: Path, status: str) -> Path:
    file = folder / "proc/self/status"
    file.parent.mkdir(parents=True)
    file.write_text(status)
    return folder


def test_without_the_settings_jobs_run_as_the_agent(root_of_host: Path) -> None:
    assert Accounts.of(NodeSettings(), root_of_host) is None


@pytest.mark.parametrize("name", ["root", SERVICE, "nobody"])
def test_system_accounts_are_refused_unless_they_are_allowed(
    root_of_host: Path, name: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"^node\.run_as: names .*allow_system"):
        Accounts.of(NodeSettings(run_as=name), root_of_host)
    allowed = NodeSettings(run_as=name, allow_system_accounts=(name,))
    accounts = Accounts.of(allowed, root_of_host)
    assert accounts
    assert accounts.of_project("any").uid == pwd.getpwnam(name).pw_uid


def test_an_unknown_account_is_told_when_the_agent_starts(root_of_host: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"^node\.run_as: names 'no-such'"):
        Accounts.of(NodeSettings(run_as="no-such"), root_of_host)


def test_a_project_has_its_own_account_and_the_others_have_the_nodes() -> None:
    accounts = Accounts(SERVICE, {"vision": "bin"}, (SERVICE, "bin"))
    assert accounts.of_project("vision").name == "bin"
    assert accounts.of_project("other").name == SERVICE
    assert accounts.of_project("").name == SERVICE
    of_default = Accounts(SERVICE, {"default": "bin"}, (SERVICE, "bin"))
    assert of_default.of_project("").name == "bin"


def test_a_project_without_an_account_does_not_run_as_root() -> None:
    with pytest.raises(InvalidInputError, match=r"^node\.accounts\.other: is not set"):
        Accounts(None, {"vision": "bin"}, ("bin",)).of_project("other")


def test_a_mapping_to_an_unknown_account_names_its_setting() -> None:
    accounts = Accounts(None, {"vision": "no-such"})
    with pytest.raises(InvalidInputError, match=r"^node\.accounts\.vision: .*no-such"):
        accounts.of_project("vision")


def test_who_is_signed_in_gets_no_account_but_their_own() -> None:
    accounts = Accounts(None, {"vision": "daemon"}, ("bin", "daemon"), True)
    assert accounts.of_job("vision", "bin").name == "bin"
    assert accounts.of_job("vision", "").name == "daemon"
    with pytest.raises(InvalidInputError, match="names root, which owns more"):
        accounts.of_job("vision", "root")
    with pytest.raises(
        InvalidInputError, match=r"^node\.accounts\.default: is not set"
    ):
        accounts.of_job("", "")


def test_no_user_chooses_an_account_by_naming_its_project() -> None:
    accounts = Accounts("daemon", {"vision": "bin"}, ("bin", "daemon"))
    for project in ("vision", "other"):
        with pytest.raises(InvalidInputError, match=r"^node\.run_as_submitter: is not"):
            accounts.of_job(project, "ana")
    assert accounts.of_job("vision", "").name == "bin"
    assert Accounts("daemon", {}, ("daemon",)).of_job("vision", "ana").name == "daemon"


def test_only_root_runs_jobs_as_their_submitters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(run_as_submitter=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    root = host(tmp_path, ALL)
    assert Accounts.of(settings, root) == Accounts(None, {}, (), True)
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    with pytest.raises(InvalidInputError, match=r"^node\.run_as_submitter: needs"):
        Accounts.of(settings, root)


def test_only_root_runs_jobs_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = pwd.getpwnam(SERVICE)
    monkeypatch.setattr(os, "geteuid", lambda: service.pw_uid)
    mapped = NodeSettings(accounts={"vision": "bin"})
    with pytest.raises(InvalidInputError, match=r"^node\.accounts: needs an agent"):
        Accounts.of(mapped, host(tmp_path, ALL))
    assert Accounts.of(NodeSettings(run_as=SERVICE), tmp_path) is None


def test_missing_capabilities_of_root_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    settings = NodeSettings(run_as=SERVICE, allow_system_accounts=(SERVICE,))
    docker = host(tmp_path, "CapEff:\t00000000a80425fb\n")
    with pytest.raises(InvalidInputError, match="needs CAP_SYS_PTRACE, which root"):
        Accounts.of(settings, docker)
