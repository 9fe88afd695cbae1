"""Jobs under the accounts of their owners: who a job becomes on this node, which files
are its own, and which devices.

The agent acts as root for jobs that are not. So their folders are in a place where only
root makes entries, and a file counts as a job's only if the job's account owns it.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpuyard.config.accounts import ENTER, Account, Accounts
from gpuyard.config.settings import NodeSettings
from gpuyard.devices.access import DeviceNumber, DeviceRule, rules_for
from gpuyard.domain import wire
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.reasons import Reason
from gpuyard.domain.separation import Separation
from gpuyard.node.launcher import LaunchError, ProcessIdentity, can_confine_devices

Devices = Mapping[str, frozenset[DeviceNumber] | None]


class JobAccounts:
    """The accounts of this node's jobs.

    `devices` returns the device files of each GPU by UUID, None where they are not
    known.
    """

    def __init__(
        self,
        settings: NodeSettings,
        accounts: Accounts,
        devices: Callable[[], Devices],
    ) -> None:
        self._settings = settings
        self._accounts = accounts
        self._devices = devices
        self._confines = can_confine_devices()

    @property
    def separation(self) -> Separation:
        """What holds between the jobs of this node."""
        known = all(numbers is not None for numbers in self._devices().values())
        if self._confines and known:
            return Separation.ACCOUNTS_AND_DEVICES
        return Separation.ACCOUNTS

    def account_of(self, start: wire.StartAttempt) -> Account:
        """The account that the attempt runs under; LaunchError when there is none."""
        try:
            return self._accounts.of_job(start.project, start.user)
        except InvalidInputError as error:
            raise LaunchError(Reason.ACCOUNT_REFUSED, str(error)) from None

    def identity(self, account: Account, workspace: Path | None) -> ProcessIdentity:
        """What the attempt's process becomes. It must be able to use its workspace."""
        return ProcessIdentity(
            account,
            int(self._settings.job_umask, 8),
            self._settings.no_new_privileges,
            (workspace,) if workspace else (),
        )

    def device_rules(self, gpu_uuids: Collection[str]) -> tuple[DeviceRule, ...] | None:
        """The devices that a job with these GPUs may open; None if that cannot be
        enforced here.
        """
        if not self._confines:
            return None
        devices = self._devices()
        own: set[DeviceNumber] = set()
        for uuid in gpu_uuids:
            numbers = devices.get(uuid)
            if numbers is None:
                return None
            own |= numbers
        every = [number for numbers in devices.values() for number in numbers or ()]
        return rules_for(own, every)


def make_owned(folder: Path, account: Account) -> None:
    """Make a folder of the account's own, unless there is one; the folders above it are
    root's, and all may pass through them.
    """
    if not folder.exists():
        make_closed(folder)
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def make_closed(folder: Path) -> None:
    """Make a folder that only root may enter; all may pass through those above it."""
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir()
            parent.chmod(ENTER)
    folder.mkdir(mode=0o700)


def hand_over(folder: Path, account: Account) -> None:
    """Give a folder with all that is in it to the account.

    The folder comes last: before that, nobody but root can enter it.
    """
    for above, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            path = os.path.join(above, name)  # noqa: PTH118  (checkpoints may have many files)
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    os.chown(folder, account.uid, account.gid, follow_symlinks=False)
