"""A Slurm cluster that keeps accounts: a MariaDB and a slurmdbd of its own, both in the
cluster's folder.
"""

import os
import pwd
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.programs import run_program
from tests.support.slurm import SlurmCluster, require_slurm
from tests.support.wait import wait_until

_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounts
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
"""
_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={ports[2]}
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu
"""


class AccountedCluster(SlurmCluster):
    """It forgets a job as soon as Slurm can, a dozen seconds after its end; from there
    on only the accounts know it.
    """

    def __init__(self) -> None:
        # Root may not run a MariaDB, and the folders of pytest let nobody else in.
        self._owner = pwd.getpwnam("mysql")
        super().__init__("accounts", _ACCOUNTING, min_job_age_s=2, gather_s=1)
        self._port = self.ports[2]
        self._database = self.folder / "mariadb"
        self._database.mkdir(mode=0o700)
        os.chown(self._database, self._owner.pw_uid, self._owner.pw_gid)
        self._door = self._database / "socket"
        conf = self.folder / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd takes no other
        conf.write_text(_CONF.format(folder=self.folder, port=self._port))

    @property
    def _identity(self) -> dict:
        return {
            "user": self._owner.pw_uid,
            "group": self._owner.pw_gid,
            "extra_groups": [],
            "cwd": "/",
        }

    def start_controller(self) -> None:
        """Start slurmctld, and at the first time what keeps its accounts: a cluster has
        to be known there.
        """
        if "mariadbd" not in self._processes:
            self._start_database()
            self.start_accounting()
            self.call("sacctmgr", "-i", "add", "cluster", "accounts")
        super().start_controller()

    def _start_database(self) -> None:
        data = self._database / "data"
        small = ["--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"]
        if not data.exists():
            words = [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={data}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
                *small,
            ]
            run_program(words, timeout=120, **self._identity)
        words = [
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={self._door}",
            "--skip-networking",
            *small,
            f"--pid-file={self._database}/pid",
        ]
        self._spawn("mariadbd", words, **self._identity)
        wait_until(lambda: _answers(str(self._door), socket.AF_UNIX), what="MariaDB")

    def start_accounting(self) -> None:
        """Start slurmdbd."""
        self._spawn(
            "slurmdbd", ["-D"], environment={"MYSQL_UNIX_PORT": str(self._door)}
        )
        wait_until(
            lambda: _answers(("127.0.0.1", self._port), socket.AF_INET), what="slurmdbd"
        )

    def execute(self, statement: str) -> None:
        """What an administrator could do to the accounts themselves."""
        self.call(
            "mariadb",
            "--no-defaults",
            "-S",
            str(self._door),
            "accounts",
            "-e",
            statement,
        )

    def account(self, job_id: str) -> str:
        """The state that the accounts have of a job; empty where they have none."""
        return self.call("sacct", "-n", "-P", "-X", "-j", job_id, "-o", "State").strip()

    def ended_at(self, job_id: str) -> float:
        """When the accounts say that a job ended."""
        return float(
            self.call(
                "env",
                "SLURM_TIME_FORMAT=%s",
                "sacct",
                "-n",
                "-P",
                "-X",
                "-j",
                job_id,
                "-o",
                "End",
            )
        )

    def forgets(self, *job_ids: str) -> None:
        """Wait until the controller no longer knows these jobs, and the accounts know
        that they are over.
        """
        gone = set(job_ids)
        wait_until(
            lambda: (
                not gone
                & set(self.call("squeue", "-h", "-t", "all", "-o", "%i").split())
            ),
            90,
            "Slurm",
        )
        live = ("", "PENDING", "RUNNING", "COMPLETING")
        wait_until(
            lambda: all(self.account(job_id) not in live for job_id in job_ids),
            what="the accounts",
        )


def _answers(address: str | tuple[str, int], family: socket.AddressFamily) -> bool:
    with suppress(OSError), socket.socket(family) as door:
        door.connect(address)
        return True
    return False


@pytest.fixture(scope="session")
def slurm_with_accounts() -> Iterator[AccountedCluster]:
    """A cluster beside the plain one, with slurmdbd."""
    require_slurm("slurmdbd", "mariadbd")
    cluster = AccountedCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)
