"""The account under which an attempt's process runs, and what that account needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.config.accounts import Account


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Who the process becomes just before it executes its program.

    `folders`: where the account must be able to read and write, or nothing starts.
    """

    account: Account
    umask: int = 0o077
    no_new_privileges: bool = False
    folders: tuple[Path, ...] = ()

    def orders(self) -> dict[str, Any]:
        """The form that `prologue.py` takes."""
        return {
            "name": self.account.name,
            "uid": self.account.uid,
            "gid": self.account.gid,
            "groups": self.account.groups,
            "umask": self.umask,
            "no_new_privileges": self.no_new_privileges,
            "folders": [str(folder) for folder in self.folders],
        }
