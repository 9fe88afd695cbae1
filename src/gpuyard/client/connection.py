"""Where the server is: told by `$GPUYARD_URL` or `gpuyard login`, shared by the users
of this machine, running under the home already, or started now as the embedded one.
"""

import json
import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.client.login import read_login, told_server
from gpuyard.config.locks import is_locked
from gpuyard.config.paths import Home
from gpuyard.config.private_environment import handing_over
from gpuyard.config.rotation import open_log
from gpuyard.config.shared import SharedInstance, find_shared
from gpuyard.domain.errors import UnreachableError

if TYPE_CHECKING:
    import subprocess

_START_S = 30.0
# So long a service manager may take to start a server again.
_MANAGER_S = 15.0
_NO_SPACE = 4096  # bytes: what is left on a full disk is less than a page


@dataclass(frozen=True, slots=True)
class Address:
    """A server's URL and the token it wants.

    With `socket`, the server is reached through this Unix socket and not at the URL. It
    must belong to our own user, root or the user `owner`. `acts_for`: the user for whom
    requests count, if an administrator sends them.
    """

    url: str
    token: str
    socket: Path | None = None
    owner: int | None = None
    acts_for: str = field(default_factory=lambda: _acts_for)

    @property
    def identity_headers(self) -> dict[str, str]:
        """What says who sends a request, and for whom."""
        headers: dict[str, str] = {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.acts_for:
            headers["Gpuyard-As"] = self.acts_for
        return headers


_acts_for = ""


def act_for(user: str) -> None:
    """Let what this process asks from now on count for another user."""
    global _acts_for
    _acts_for = user


def find_server(home: Home | None = None, *, start: bool = True) -> Address:
    """The server to talk to.

    With `start`, one is started under `home` when none runs; else UnreachableError.
    Without `home`, a server that one has signed in to comes first, then a shared server
    of this machine, then one's own. RefusedError for who may not use it.
    """
    url = os.environ.get("GPUYARD_URL")
    if url:
        return Address(url.rstrip("/"), _token(home or Home.find()))
    if home is None and (login := read_login(Home.find())):
        return Address(login.url, login.token)
    if home is None and (shared := used_instance()):
        return shared_server(shared)
    home = home or Home.find()
    address = running_server(home)
    if address is None and start:
        address = managed_server(home)
    if address:
        return address
    if not start:
        raise UnreachableError(
            f"No gpuyard server runs under {home.root}.", "Start one with `gpuyard up`."
        )
    return start_server(home)


def used_instance() -> SharedInstance | None:
    """The shared instance of this machine, unless the environment names another
    server.
    """
    if told_server(Home.find()) or os.environ.get("GPUYARD_HOME"):
        return None
    return find_shared()


def shared_server(shared: SharedInstance) -> Address:
    """The server of `shared`, which needs no token; RefusedError, UnreachableError.

    The folder of its socket is there as long as systemd starts it again.
    """
    shared.refuse_outsiders()
    deadline = time.monotonic() + _MANAGER_S
    while not shared.answers():
        if not shared.socket.parent.exists() or time.monotonic() > deadline:
            raise shared.unreachable()
        time.sleep(0.05)
    shared.refuse_outsiders()
    # The host is only a name here: the socket leads to the server.
    return Address("http://localhost", "", shared.socket, shared.owner)


def look_again(before: Address, *, start: bool) -> Address:
    """Where the server that was at `before` is now: one that was started anew may
    listen elsewhere.

    With `start`, one is started when none runs, as at the beginning; without, only one
    that was killed.
    """
    return replace(_look_again(before, start), acts_for=before.acts_for)


def _look_again(before: Address, start: bool) -> Address:
    home = Home.find()
    if used_instance():
        return before  # it comes back at the same socket
    if start or told_server(home):
        return find_server()
    if was_killed(home):
        with suppress(UnreachableError):  # the next look may find it started
            return find_server()
    return running_server(home) or before


def was_killed(home: Home) -> bool:
    """Whether the last server of this home did not end as it should, and no service
    manager starts it again.
    """
    return not is_locked(home.lock) and not _has_manager(home) and home.server.exists()


def _has_manager(home: Home) -> bool:
    """Whether a service manager looks after the server that last announced itself."""
    try:
        return bool(json.loads(home.server.read_text()).get("managed"))
    except (OSError, ValueError):
        return False


def managed_server(home: Home) -> Address | None:
    """The server that a service manager starts again; None if there is none, or if it
    does not come back.
    """
    if is_locked(home.lock) or not _has_manager(home):
        return None
    deadline = time.monotonic() + _MANAGER_S
    while time.monotonic() < deadline:
        address = running_server(home)
        if address:
            return address
        time.sleep(0.05)
    return None


def running_server(home: Home) -> Address | None:
    """The server that holds this home's lock, if it has announced itself."""
    if not is_locked(home.lock):
        return None
    try:
        body: dict[str, Any] = json.loads(home.server.read_text())
        holder = int(home.lock.read_text())
    except (OSError, ValueError):
        return None
    if body["pid"] != holder:
        # the announcement of a server that was killed; the one that holds the lock is
        # still starting
        return None
    token = _token(home)
    # A server from before the socket names none; its port is then checked.
    path = home.server_socket if body.get("socket") else None
    if path and _refuses(path):
        # A new server holds the lock and has not written its own process into it yet:
        # both files still tell of one that was killed.
        return None
    return Address(body["url"], token, path)


def _refuses(path: Path) -> bool:
    """Whether nobody listens at this Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False  # many wait for it already, or it is not ours to ask
    return False


def stopped_server(home: Home) -> int:
    """The process of this home's server if somebody has stopped it (SIGSTOP, Ctrl-Z):
    it answers nothing until it goes on. 0 without such a server.
    """
    try:
        process = int(home.lock.read_text())
        status = Path(f"/proc/{process}/stat").read_text()
    except (OSError, ValueError):
        return 0
    state = status.rpartition(")")[2].split()[0]
    return process if state in "Tt" and is_locked(home.lock) else 0


def start_server(home: Home) -> Address:
    """Start the embedded server in the background and wait until it serves;
    UnreachableError quotes what it said.
    """
    import subprocess  # a command that finds its server running does without

    log = home.logs / "server.log"
    try:
        home.create()
        with open_log(log) as output, handing_over() as (environment, files):
            said = output.tell()
            command = [sys.executable, "-m", "gpuyard.server", "--home", str(home.root)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=home.root,
                env=environment,
                pass_fds=files,
            )
    except OSError as error:
        raise UnreachableError(
            f"The embedded server cannot be started under {home.root}:"
            f" {error.strerror or error}.",
            "Set GPUYARD_HOME to a folder you can write to.",
        ) from None
    return _wait(home, process, log, said)


def _wait(
    home: Home, process: "subprocess.Popen[bytes]", log: Path, said: int
) -> Address:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        address = running_server(home)
        if address:
            return address
        # A server that lost the race for the lock leaves; the one that won is then
        # waited for.
        if process.poll() is not None and not is_locked(home.lock):
            break
        time.sleep(0.01)
    else:
        raise UnreachableError(
            f"The embedded server has been starting for {_START_S:.0f} s, and does not"
            " answer yet.",
            f"Try again in a moment; its log is {log}.",
        )
    words = log.read_bytes()[said:].decode(errors="replace").strip()
    last = (
        words.splitlines()[-1].removeprefix("gpuyard: ") if words else "it said nothing"
    )
    if not words and shutil.disk_usage(home.root).free < _NO_SPACE:
        last = f"the disk that holds {home.root} is full"
    raise UnreachableError(
        f"The embedded server did not start: {last.rstrip('.')}.", f"Its log is {log}."
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _token(home: Home) -> str:
    return os.environ.get("GPUYARD_TOKEN", "").strip() or _read(home.token)
