"""The provider `local`: this machine.

It has one agent, which connects over a unix socket. A keeper process, which this
provider starts, restarts the agent when it dies.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import structlog

import gpuyard
from gpuyard.config.locks import is_locked
from gpuyard.config.open_files import restore_files
from gpuyard.config.paths import Home
from gpuyard.config.private_environment import handing_over
from gpuyard.config.rotation import open_log
from gpuyard.config.sockets import listening_socket
from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.providers.agent import AgentProvider
from gpuyard.providers.base import Sink
from gpuyard.providers.command_check import check_command, checked_folder
from gpuyard.providers.keeper_watchdog import KeeperWatchdog, keeper_of

_KEEPER_CHECK_S = 2.0
# So often one looks whether an agent that was told to leave has done so.
_LEAVING_LOOKS = 100
_LOOK_S = 0.02
log = structlog.get_logger(__name__)


class LocalProvider(AgentProvider):
    """This machine's CPUs and GPUs. `config`: `home` (a path), and AgentProvider's."""

    PROVIDER_NAME: ClassVar[str] = OWN_NODES

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._home = Home(Path(config["home"]))
        self._node_id = ""
        self._server: asyncio.Server | None = None
        self._guard: asyncio.Task[None] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    async def start(self, sink: Sink) -> None:
        """Open the socket, then keep a keeper running."""
        await super().start(sink)
        self._home.create()
        bound = listening_socket(self._home.socket)
        self._server = await asyncio.start_unix_server(self.serve, sock=bound)
        self._guard = asyncio.create_task(
            keep_keeper(self._home, self._note_keeper), name="keeper-guard"
        )

    async def close(self) -> None:
        """Close the socket; keeper, agent and jobs keep running."""
        if self._guard:
            self._guard.cancel()
        await super().close()
        if self._server:
            self._server.close()
        self._home.socket.unlink(missing_ok=True)

    async def dismiss(self) -> None:
        """Send Leave to this home's agent; other homes' agents have other servers. A
        keeper that does not end with it is told to end the agent that it has.
        """
        if self._guard:
            self._guard.cancel()  # no new keeper
        link = self.agents.links.get(self._own_node())
        if link:
            with suppress(ProviderError):  # killed a moment ago
                link.send(wire.Leave())
            await self._until_keeper_leaves()
        # Its agent has not connected yet: it starts, or it waits for the connected one,
        # whose own keeper was killed, to end.
        if keeper := self._remaining_keeper():
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)

    async def _until_keeper_leaves(self) -> None:
        """Wait until the keeper is about to end, or should have been long ago."""
        for _ in range(_LEAVING_LOOKS):
            if not self._remaining_keeper():
                return
            await asyncio.sleep(_LOOK_S)

    def _remaining_keeper(self) -> int:
        """The pid of the keeper that keeps an agent alive, 0 without one. One that only
        waits for jobs to end has let go of its lock.
        """
        keeper = keeper_of(self._home.node)
        if keeper:
            return keeper if keeper_alive(self._home) else 0
        if self._keeper and self._keeper.poll() is None:
            return self._keeper.pid  # it has only just begun
        return 0

    def shares_home(self, node_id: str) -> bool:
        """See AgentProvider: only this home's own agent does."""
        return node_id == self._own_node()

    def _own_node(self) -> str:
        """The id of this home's node, empty while it has none. It never changes."""
        id_file = self._home.node / "id"
        if not self._node_id and id_file.exists():
            self._node_id = id_file.read_text().strip()
        return self._node_id

    def _note_keeper(self, keeper: "subprocess.Popen[bytes]") -> None:
        self._keeper = keeper

    async def check(
        self, program: Sequence[str], workdir: str | None, path: str | None
    ) -> None:
        """Check the job's folder and program: it will run on this host."""
        if program:
            base = checked_folder(workdir)
            check_command(program, base, path)


def stop_keeper(home: Home) -> None:
    """Let the keeper end, and the agent with it. Running jobs go on."""
    if keeper := keeper_of(home.node):
        with suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGTERM)


def keeper_alive(home: Home) -> bool:
    """True while a process holds the keeper's lock."""
    return is_locked(home.node / "keeper.lock")


async def keep_keeper(
    home: Home, started: Callable[["subprocess.Popen[bytes]"], None] = lambda _: None
) -> None:
    """Start a keeper whenever none runs; kill one that does not work."""
    watchdog = KeeperWatchdog(home.node)
    while True:
        try:
            if not keeper_alive(home):
                started(start_keeper(home))
            elif fault := await asyncio.to_thread(watchdog.check):
                log.warning("the keeper was killed, another follows", why=fault)
                continue
        except OSError as error:
            log.error("the keeper cannot be started, will try again", error=str(error))
        await asyncio.sleep(_KEEPER_CHECK_S)


def start_keeper(home: Home) -> "subprocess.Popen[bytes]":
    """Start the keeper, which starts the agent; both outlive this process."""
    package = Path(gpuyard.__file__).parent
    agent = [sys.executable, "-m", "gpuyard.node.agent", "--home", str(home.root)]
    command = [
        sys.executable,
        "-I",
        str(package / "node" / "keeper.py"),
        "--dir",
        str(home.node),
        "--server",
        str(home.root),
        "--",
        *agent,
    ]
    with (
        handing_over() as (environment, files),
        open_log(home.logs / "node.log") as output,
    ):
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={
                name: value
                for name, value in environment.items()
                if not name.startswith("GPUYARD_JOB")
            },
            pass_fds=files,
        )
    restore_files(keeper.pid)
    log.info("keeper started")
    return keeper
