"""A Slurm cluster that is asked over HTTP: a slurmrestd beside it, on a unix socket and
on a port, with tokens.
"""

import secrets
import shutil
from collections.abc import Iterator

import httpx
import pytest

from tests.support.slurm import SlurmCluster, require_slurm
from tests.support.wait import wait_until

_TOKENS = """
AccountingStorageType=accounting_storage/none
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
"""
_VERSIONS = ("v0.0.36", "v0.0.37", "v0.0.38")


class RestCluster(SlurmCluster):
    """`unix` and `http` are where it is asked; `token` is root's."""

    def __init__(self) -> None:
        super().__init__("rest", _TOKENS)
        key = self.folder / "jwt.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(32))
        # slurmrestd refuses to run as root, and makes its socket itself.
        self._door = self.folder / "door"
        self._door.mkdir()
        shutil.chown(self._door, "nobody", "nogroup")
        self.unix = f"unix://{self._door}/socket"
        self.http = f"http://127.0.0.1:{self.ports[2]}"
        self.token = ""

    def start(self) -> None:
        """Start the cluster, then slurmrestd."""
        super().start()
        self.token = self.new_token(36000)
        self.start_rest()

    def new_token(self, seconds: int) -> str:
        """A token that is good for so long."""
        return (
            self.call("scontrol", "token", "username=root", f"lifespan={seconds}")
            .strip()
            .partition("=")[2]
        )

    def start_rest(self) -> None:
        """Start slurmrestd: without slurmdbd it has to be told which of its parts to
        load.
        """
        (self._door / "socket").unlink(missing_ok=True)
        parts = ",".join(f"openapi/{version}" for version in _VERSIONS)
        places = [f"unix:{self._door}/socket", f"127.0.0.1:{self.ports[2]}"]
        nobody = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        self._spawn(
            "slurmrestd",
            ["-a", "rest_auth/jwt", "-s", parts, *places],
            environment={"SLURM_JWT": "daemon"},
            **nobody,
        )
        wait_until(self._answers, what="slurmrestd")

    def _answers(self) -> bool:
        try:
            return (
                httpx.get(f"{self.http}/openapi/v3", trust_env=False).status_code == 401
            )
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="session")
def rest_cluster() -> Iterator[RestCluster]:
    """A cluster with a slurmrestd."""
    require_slurm("slurmrestd")
    cluster = RestCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def slurm_rest(
    rest_cluster: RestCluster, monkeypatch: pytest.MonkeyPatch
) -> RestCluster:
    """The cluster, and its token in this process's environment."""
    monkeypatch.setenv("SLURM_JWT", rest_cluster.token)
    monkeypatch.setenv("SLURM_USER", "root")
    return rest_cluster
