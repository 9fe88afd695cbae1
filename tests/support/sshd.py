"""A real ssh server on this host for tests, with keys of its own."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.components import require
from tests.support.ports import free_port
from tests.support.wait import wait_until


@dataclass(frozen=True, slots=True)
class Sshd:
    """`options` make `ssh login` come to it."""

    options: tuple[str, ...]


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """It listens on a free port of the loopback."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    require("ssh", program is not None and os.geteuid() == 0)
    assert program is not None
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-ssh-"))
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
            check=True,
        )
    (folder / "user.pub").rename(folder / "authorized")
    port = free_port()
    Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)
    words = [
        program,
        "-D",
        "-e",
        "-f",
        "/dev/null",
        "-p",
        str(port),
        "-h",
        str(folder / "host"),
        "-o",
        f"AuthorizedKeysFile={folder}/authorized",
        "-o",
        "StrictModes=no",
        "-o",
        "PidFile=none",
        "-o",
        "ListenAddress=127.0.0.1",
        "-o",
        "MaxSessions=100",
        # So that bash takes itself for an inner shell and does not read ~/.bashrc, which
        # may take longer than the command.
        "-o",
        "SetEnv=SHLVL=1",
    ]
    (folder / "config").write_text(
        f"Host login\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user\n  StrictHostKeyChecking no\n "
        f" UserKnownHostsFile {folder}/known\n"
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: _answers(port), what="the ssh server")
        yield Sshd(("-F", str(folder / "config")))
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
