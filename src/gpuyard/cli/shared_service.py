"""What `gpuyard service install --shared` prepares: a group, the settings that members
read, and a program that they may run.
"""

import grp
import pwd
import stat
import subprocess
import sys
import time
from pathlib import Path

import gpuyard
from gpuyard.config.shared import SETTINGS, SOCKET, find_shared
from gpuyard.config.systemd import SharedService
from gpuyard.domain.errors import InvalidInputError, RefusedError, UnreachableError

_START_S = 30.0
_ACCOUNTS = """
[node]
# Each job runs under the account of the member who submitted it.
run_as_submitter = true

[workspaces]
path = "/var/lib/gpuyard/workspaces"
"""


def settings_text(service: SharedService) -> str:
    """The settings of a server for a group."""
    account = "" if service.account == "root" else f'account = "{service.account}"\n'
    return f"""\
# Written by `gpuyard service install --shared`. All users of this machine read this
# file: keys belong into service.env beside it, which only root should read.
[shared]
socket = "{SOCKET}"
group = "{service.group}"
{account}{_ACCOUNTS if service.account == "root" else ""}"""


def prepare(service: SharedService) -> None:
    """Make the group and write the settings, unless they exist.

    RefusedError when the members could not use the server, or the settings are those
    of another one.
    """
    _refuse_closed_program()
    _check_account(service.account)
    _make_group(service.group)
    settings = service.settings
    if settings.exists():
        _refuse_other(service)
        return
    settings.parent.mkdir(exist_ok=True)
    settings.parent.chmod(0o755)
    settings.write_text(settings_text(service))
    settings.chmod(0o644)


def wait_until_it_listens() -> None:
    """Wait for the socket of the server that was started; UnreachableError when it does
    not come.
    """
    shared = find_shared()
    deadline = time.monotonic() + _START_S
    while shared and not shared.socket.exists():
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"The server does not listen at {shared.socket} yet.",
                "`journalctl -u gpuyard` says why.",
            )
        time.sleep(0.05)


def retire_settings() -> Path | None:
    """Put the settings aside, so that members look for no server that is gone; where
    they are now, if there were any.
    """
    if find_shared() is None:
        return None
    return SETTINGS.replace(SETTINGS.with_suffix(".toml.old"))


def _refuse_other(service: SharedService) -> None:
    found = find_shared(service.settings)
    if found and (found.group, found.account) == (service.group, service.account):
        return
    lines = settings_text(service).split("[shared]")[1].split("\n\n")[0].strip()
    raise RefusedError(
        f"{service.settings} exists, and its section [shared] says something else.",
        f"Let it say `{'; '.join(lines.splitlines())}`, or move the file away.",
    )


def _check_account(account: str) -> None:
    try:
        pwd.getpwnam(account)
    except KeyError:
        raise InvalidInputError.of(
            "--account",
            f"names {account!r}, which is no account of this machine",
            f"make it with `useradd --system --user-group {account}`",
        ) from None


def _make_group(group: str) -> None:
    try:
        grp.getgrnam(group)
    except KeyError:
        command = ["groupadd", "--system", group]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            fault = f"cannot be made: {done.stderr.strip() or 'groupadd failed'}"
            raise InvalidInputError.of("--group", fault, "name another") from None


def _refuse_closed_program() -> None:
    """RefusedError when this program is in a folder that others may not enter."""
    programs = (Path(sys.executable), Path(sys.executable).resolve())
    for path in (*programs, Path(gpuyard.__file__)):
        for folder in path.parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                raise RefusedError(
                    f"Only its owner may enter {folder}, so members could not run"
                    " gpuyard.",
                    "Install it where all may, such as in /opt/gpuyard, and run this"
                    " command from there.",
                )
