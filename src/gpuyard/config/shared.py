"""The shared instance of this machine: one server that takes all members of a group.

`/etc/gpuyard/gpuyard.toml` has its settings. The section `shared` of that file tells
the commands of the members where it listens.

Standard library only, because every command looks.
"""

import grp
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.config.sockets import connected_socket
from gpuyard.domain.errors import InvalidInputError, RefusedError, UnreachableError

SETTINGS = Path("/etc/gpuyard/gpuyard.toml")
HOME = Path("/var/lib/gpuyard/home")
SOCKET = Path("/run/gpuyard/gpuyard.sock")
OWN_SERVER = "for a server of your own, set GPUYARD_HOME=~/.gpuyard"


@dataclass(frozen=True, slots=True)
class SharedInstance:
    """`account` is the one that the server runs under: no other may answer at
    `socket`.
    """

    socket: Path
    group: str
    account: str = "root"

    @property
    def owner(self) -> int:
        """The number of the server's account; InvalidInputError without one."""
        try:
            return pwd.getpwnam(self.account).pw_uid
        except KeyError:
            raise InvalidInputError.of(
                f"{SETTINGS}: shared.account",
                f"names {self.account!r}, which is no account of this machine",
                "name the account that the server runs under",
            ) from None

    def check(self) -> None:
        """RefusedError for who is not in the group; UnreachableError while no server
        answers.
        """
        self.refuse_outsiders()
        if not self.answers():
            raise self.unreachable()

    def refuse_outsiders(self) -> None:
        """RefusedError for who is not in the group."""
        is_there = os.access(self.socket, os.F_OK)
        if is_there and not os.access(self.socket, os.W_OK):
            raise RefusedError(self._outside(), f"{self._how_to_join()}; {OWN_SERVER}.")

    def answers(self) -> bool:
        """Whether somebody listens; the connection itself tells whether it is the
        server.
        """
        try:
            connected_socket(self.socket, self.owner).close()
        except (FileNotFoundError, ConnectionError):
            return False
        except OSError:
            return True
        return True

    def unreachable(self) -> UnreachableError:
        """The error while no server answers."""
        return UnreachableError(
            f"The shared server of this machine does not answer at {self.socket}.",
            f"An administrator starts it with `systemctl start gpuyard`; {OWN_SERVER}.",
        )

    def _outside(self) -> str:
        return (
            "The shared server of this machine is for the group"
            f" {self.group}, and this session is not in it."
        )

    def _how_to_join(self) -> str:
        name = _own_name()
        if name in _members(self.group):
            return f"You are a member now: log in again, or `newgrp {self.group}`"
        return (
            f"Ask an administrator for `usermod -aG {self.group} {name}`, then log in"
            " again"
        )


def find_shared(settings: Path = SETTINGS) -> SharedInstance | None:
    """The shared instance that `settings` describes, if there is one.

    InvalidInputError when the file cannot be read.
    """
    if not os.access(settings, os.F_OK):
        return None  # nothing is there, or nothing for this user
    import tomllib  # late: on most machines there is nothing to read

    try:
        section: dict[str, Any] = tomllib.loads(settings.read_text()).get("shared", {})
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
        raise InvalidInputError.of(str(settings), fault, _TELL) from None
    except ValueError as error:
        fault = f"is not valid TOML: {error}"
        raise InvalidInputError.of(str(settings), fault, _TELL) from None
    if "socket" not in section:
        return None
    return SharedInstance(
        Path(section["socket"]),
        str(section.get("group", "")),
        str(section.get("account", "root")),
    )


_TELL = f"tell an administrator; {OWN_SERVER}"


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _members(group: str) -> list[str]:
    try:
        return grp.getgrnam(group).gr_mem
    except KeyError:
        return []
