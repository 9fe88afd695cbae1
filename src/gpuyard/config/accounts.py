"""The accounts of this host under which jobs run: which one a project has, and which
ones are refused.
"""

import hashlib
import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.workspaces import DEFAULT_PROJECT

if TYPE_CHECKING:
    # Late, because it takes longer than all that a process of an account does.
    from gpuyard.config.settings import NodeSettings

# The first uid of people's accounts, where login.defs(5) does not tell it.
_FIRST_UID = 1000
_NOBODY = 65534
# The mode of folders that all may pass through.
ENTER = 0o711
# What an agent of root needs for jobs of others; containers often lack some.
_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,
}


@dataclass(frozen=True, slots=True)
class Account:
    """An account as passwd(5) and group(5) describe it; `groups` are all its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def environment(self) -> dict[str, str]:
        """What a login sets."""
        return {
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": self.shell or "/bin/sh",
        }


@dataclass(frozen=True, slots=True)
class Accounts:
    """Whose account a job gets: with `by_submitter` that of the user who submitted it,
    if the server knows that; else that of its project, else `run_as`.

    `allowed_system_accounts`: accounts of services, or root, that may be used
    nevertheless.
    """

    run_as: str | None
    by_project: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed_system_accounts: tuple[str, ...] = ()
    by_submitter: bool = False

    @classmethod
    def of(cls, settings: "NodeSettings", root: Path = Path("/")) -> "Accounts | None":
        """Those of the settings; None when jobs run as the agent does.

        `root` is the file system's root. InvalidInputError when this process cannot run
        jobs as others, or `run_as` is an account that it must not use.
        """
        run_as = settings.run_as
        others = {*settings.accounts.values(), run_as} - {None}
        if os.geteuid() != 0:
            others -= {_own_name()}
        if not others and not settings.run_as_submitter:
            return None
        setting = "node.run_as" if run_as else "node.accounts"
        _check_rights(setting if others else "node.run_as_submitter", root)
        found = cls(
            run_as,
            settings.accounts,
            settings.allow_system_accounts,
            settings.run_as_submitter,
        )
        if run_as:
            found.find(run_as, "node.run_as")
        return found

    def of_job(self, project: str, user: str) -> Account:
        """The account of a job of this project that `user` submitted (empty: the
        server does not know who); InvalidInputError names the setting.

        Who is signed in gets no other account, whatever project the job names: a node
        does not know who is in which project.
        """
        if self.by_submitter and user:
            return self.find(user, "node.run_as_submitter")
        if user and self.by_project:
            raise InvalidInputError.of(
                "node.run_as_submitter",
                f"is not set, and {user} could choose any account in node.accounts by"
                " naming its project",
                "set it, so that the jobs of users run under their own accounts",
            )
        return self.of_project(project)

    def of_project(self, project: str) -> Account:
        """The account of a project's jobs; InvalidInputError names the setting."""
        project = project or DEFAULT_PROJECT
        name = self.by_project.get(project)
        if name:
            return self.find(name, f"node.accounts.{project}")
        if self.run_as:
            return self.find(self.run_as, "node.run_as")
        raise InvalidInputError.of(
            f"node.accounts.{project}",
            "is not set, and neither is node.run_as",
            "name the account of this project's jobs",
        )

    def find(self, name: str, setting: str) -> Account:
        """The account with this name; InvalidInputError names the `setting`."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise InvalidInputError.of(
                setting,
                f"names {name!r}, which is no account of this host",
                "make the account, or name another one",
            ) from None
        self._refuse_system(entry, setting)
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return Account(
            name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell
        )

    def _refuse_system(self, entry: pwd.struct_passwd, setting: str) -> None:
        name = entry.pw_name
        is_system = entry.pw_uid < _first_uid() or entry.pw_uid == _NOBODY
        if is_system and name not in self.allowed_system_accounts:
            kind = "root" if entry.pw_uid == 0 else f"a system account, {name}"
            raise InvalidInputError.of(
                setting,
                f"names {kind}, which owns more than its jobs",
                "name a person's account, or list it in node.allow_system_accounts",
            )


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def _first_uid(path: Path = Path("/etc/login.defs")) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return _FIRST_UID
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0] == "UID_MIN" and words[1].isdigit():
            return int(words[1])
    return _FIRST_UID


def _check_rights(setting: str, root: Path) -> None:
    """InvalidInputError unless this process may become others and act for them."""
    if os.geteuid() != 0:
        raise InvalidInputError.of(
            setting,
            "needs an agent that runs as root, and this one does not",
            "start gpuyard as root, or remove the setting",
        )
    held = _effective_capabilities(root)
    missing = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        raise InvalidInputError.of(
            setting,
            f"needs {', '.join(missing)}, which root lacks here",
            "give the container these capabilities, or remove the setting",
        )


def _effective_capabilities(root: Path) -> int:
    for line in (root / "proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0


def job_folder(root: Path, node_id: str) -> Path:
    """The folder of this node's jobs below `root`, made when it does not exist.

    InvalidInputError as for `make_passable`.
    """
    make_passable(root)
    folder = root / node_id
    make_passable(folder)
    return folder


def workers_socket(root: Path, home: Path) -> Path:
    """Where the server of this home listens for workers under accounts, which may not
    enter the home. `root` is the folder of all accounts' jobs.
    """
    name = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    return root / f"server-{name}.sock"


def make_passable(folder: Path) -> None:
    """Make a folder of root's that all may pass through, unless there is one.

    InvalidInputError unless only root can change the way to it and all may go there.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(ENTER)
    for step in (folder, *folder.parents):
        status = step.lstat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = status.st_mode & stat.S_ISVTX
        safe = stat.S_ISDIR(status.st_mode) and status.st_uid == 0
        if not safe or (shared and not sticky):
            fault = f"leads through {step}, which others than root may change"
        elif not status.st_mode & stat.S_IXOTH:
            fault = f"leads through {step}, which accounts may not enter"
        else:
            continue
        raise InvalidInputError.of(
            "node.accounts_folder", fault, "name a folder such as /var/lib/gpuyard"
        )
