"""`python -m gpuyard.server`: one server for one home, until it is asked to stop or has
been idle for long enough.
"""

from gpuyard.config.private_environment import (
    digest_of_keys,
    execute,
    protect,
    public_settings,
)

if __name__ == "__main__":
    # Before all other imports, which take half a second.
    protect()

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
import uvicorn
import uvloop

from gpuyard import __version__
from gpuyard.config.accounts import Accounts, workers_socket
from gpuyard.config.database import find_database
from gpuyard.config.dialling import loopback_id
from gpuyard.config.logs import configure_logging
from gpuyard.config.open_files import allow_many_files, restore_files
from gpuyard.config.paths import Home
from gpuyard.config.proof import digest_of
from gpuyard.config.settings import Settings, load_settings
from gpuyard.config.sockets import (
    keep_alive,
    listening_socket,
    refuse_other_users,
)
from gpuyard.controller.controller import Controller, configured_providers
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    LedgerError,
    LedgerUnreachableError,
)
from gpuyard.domain.ids import new_id
from gpuyard.ledger.lease import Lease, Member
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.reserve import Reserve
from gpuyard.ledger.store import lock_ledger
from gpuyard.notify.notifier import Notifier
from gpuyard.notify.webhook import Webhook, read_webhooks
from gpuyard.resource_manager.manager import ResourceManager
from gpuyard.server.app import make_app
from gpuyard.server.app_state import AppState
from gpuyard.server.auth import ensure_token
from gpuyard.server.backups import sweep_downloads
from gpuyard.server.connections import Connection, Connections
from gpuyard.server.election import Election
from gpuyard.server.listening import (
    BACKLOG,
    listen,
    listen_for_group,
    listen_for_workers,
    refuse_other_hosts,
    url_of,
)
from gpuyard.server.stream import EventStream
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import open_store
from gpuyard.storage.untrusted import write_beneath

_DATABASE_AGAIN_S = 1.0
_WRITE_BUFFER = 16 * 1024
# Agents send parts of 64 KB.
_WEBSOCKET_BYTES = 1 << 20
log = structlog.get_logger(__name__)


def main() -> None:
    """Run the server; an error it can explain is one line on stderr and the error's
    exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gpuyard.server", description=__doc__
    )
    parser.add_argument(
        "--home", type=Path, help="default: $GPUYARD_HOME or ~/.gpuyard"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only read the settings as at a start, and say what is wrong",
    )
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="a service manager starts it again when it was killed",
    )
    parser.add_argument(
        "--inherited",
        type=int,
        nargs=3,
        metavar=("LOCK", "PORT", "SOCKET"),
        help=argparse.SUPPRESS,
    )
    arguments = parser.parse_args()
    home = Home(arguments.home.absolute()) if arguments.home else Home.find()
    if arguments.check:
        _check(home)
        return
    configure_logging(home.logs / "server.log")
    try:
        home.create()
        allow_many_files()  # a listener of the event stream is one
        _run(home, arguments.inherited, foreground=arguments.foreground)
    except GpuyardError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(
            f"gpuyard: cannot use {home.root}: {error.strerror or error}\n"
        )
        sys.exit(LedgerError.exit_code)


def _run(home: Home, inherited: list[int] | None, *, foreground: bool) -> None:
    settings = load_settings(home)
    # The agent would find the same fault, but say it less.
    accounts = Accounts.of(settings.node)
    hooks = read_webhooks(settings.notify.webhooks, os.environ)
    blobs = open_store(home.root, settings.storage)
    if inherited:
        lock = os.fdopen(inherited[0], "a+")
        listener, own = (socket.socket(fileno=number) for number in inherited[1:])
        ledger = _open_patiently(home, settings)
    else:
        lock = lock_ledger(home.lock)
        sweep_downloads(home)
        listener = listen(settings)
        own = listening_socket(home.server_socket, BACKLOG)
        ledger = _open_ledger(home, settings)
    app_state = _make_app_state(
        home, settings, ledger, blobs, settings.server.url or url_of(listener)
    )
    if app_state.election and not inherited:
        _check_membership(app_state, app_state.election)
    if hooks:
        give_up_s = settings.notify.give_up_s
        app_state.notifier = _notifier(hooks, app_state.controller, give_up_s)
    command = [sys.executable, "-m", "gpuyard.server", "--home", str(home.root)]
    if foreground:
        command.append("--foreground")
    app_state.start_over = lambda why: _start_over(
        command, [lock.fileno(), listener.fileno(), own.fileno()], why
    )
    restart = None
    if settings.server.restart and not foreground:
        restart = {
            "command": command,
            "environment": public_settings(),
            "keys": digest_of_keys(),
        }
    upkeep = {"restart": restart, "managed": foreground}
    sockets = [listener, own]
    # It has no state: a server that has started over makes it anew.
    if shared := listen_for_group(settings.shared):
        sockets.append(shared)
    workers = workers_socket(settings.node.accounts_folder, home.root)
    if accounts:
        sockets.append(listen_for_workers(workers))
    try:
        uvloop.run(_serve(app_state, sockets, upkeep))
    finally:
        if accounts:
            workers.unlink(missing_ok=True)
        ledger.close()
        lock.close()


def _check(home: Home) -> None:
    """Read everything that the settings name as a server does when it starts; leave
    with the error's exit code when it would not start.
    """
    try:
        settings = load_settings(home)
        Accounts.of(settings.node)
        read_webhooks(settings.notify.webhooks, os.environ)
        open_store(home.root, settings.storage)
        find_database(home, settings.ledger.url)
        configured_providers(home.root, settings)
        refuse_other_hosts(settings)
    except GpuyardError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(error.exit_code)


def _check_membership(app_state: AppState, election: Election) -> None:
    """InvalidInputError when this server could not reach others, or they not it."""
    try:
        app_state.tls.context()
    except OSError as error:
        fault = f"is {app_state.tls.ca_file}: {error.strerror or error}"
        remedy = "name a file of certificates in PEM"
        raise InvalidInputError.of("server.ca_file", fault, remedy) from None
    election.refuse_loopback()


def _make_app_state(
    home: Home, settings: Settings, ledger: Ledger, blobs: Blobs, url: str
) -> AppState:
    stream = EventStream(ledger.queries)
    controller = Controller(
        ledger,
        settings,
        configured_providers(home.root, settings),
        blobs,
        home,
        stream.changed,
    )
    token = ensure_token(home.token)
    election = None
    if ledger.shared:
        me = Member(_server_id(home.server_id), url, digest_of(token), loopback_id())
        election = Election(Lease(ledger.engine, me), me)
    manager = ResourceManager(controller)
    return AppState(
        home, settings, controller, manager, blobs, stream, token, url, election
    )


def _notifier(
    hooks: Sequence[Webhook], controller: Controller, give_up_s: float
) -> Notifier:
    # Late: a server without webhooks needs no HTTP client.
    from gpuyard.notify.delivery import Delivery

    core = controller.core
    return Notifier(hooks, core.queries, core.writer, Delivery(), give_up_s=give_up_s)


def _open_ledger(home: Home, settings: Settings) -> Ledger:
    """The ledger; a file in the home has the reserve to rely on."""
    where = find_database(home, settings.ledger.url)
    if not isinstance(where, Path):
        if settings.shared.socket:
            raise InvalidInputError.of(
                "shared.socket",
                "needs a ledger in a file: other servers of one PostgreSQL would not"
                " know who its members are",
                "remove [shared], or `url` of [ledger]",
            )
        return Ledger.open(where)
    size = int(settings.disk.reserve_mb * 1_000_000)
    return Ledger.open(where, Reserve(home.reserve, size))


def _open_patiently(home: Home, settings: Settings) -> Ledger:
    """The ledger of a server that has started over; its database may be away for a
    while. Who calls meanwhile waits.
    """
    while True:
        try:
            return _open_ledger(home, settings)
        except LedgerUnreachableError as error:
            log.warning("waiting for the database", error=str(error))
            time.sleep(_DATABASE_AGAIN_S)


def _start_over(command: list[str], inherited: Sequence[int], why: str) -> None:
    """Become a new server with the same process, lock and addresses: nothing this one
    believed is to be relied on.
    """
    log.warning("this server starts over", why=why)
    for number in inherited:
        os.set_inheritable(number, True)
    restore_files()
    execute([*command, "--inherited", *map(str, inherited)])


def _server_id(path: Path) -> str:
    """This server's id, made once."""
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(new_id("server"))
        draft.rename(path)
    return path.read_text().strip()


class _Connection(Connection):
    """One of ours, but that it keeps less for a client that does not read: there may be
    thousands of them.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless another user has come to our own socket."""
        connected = transport.get_extra_info("socket")
        is_unix = connected.family == socket.AF_UNIX
        if is_unix and not self._all.is_open(connected):
            try:
                refuse_other_users(connected)
            except PermissionError as error:
                log.warning("a connection is refused", why=str(error))
                transport.abort()
        else:
            # A client that streams may say nothing for hours.
            keep_alive(connected)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        super().connection_made(transport)


class _Server(uvicorn.Server):
    """uvicorn, but that it says when it serves and leaves signals to us."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Note when the sockets are served."""
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing: the handlers in `_serve` let agents leave first."""
        yield


async def _serve(
    app_state: AppState,
    sockets: list[socket.socket],
    upkeep: dict[str, Any],
) -> None:
    """Serve at the `sockets`: the first has the URL, the second is our own user's, and
    other users may open the rest.
    """
    settings = app_state.settings
    _, _, *for_others = sockets
    names = frozenset(str(one.getsockname()) for one in for_others)
    connections = Connections(settings.server, settings.shared.socket, names)
    http = partial(_Connection, connections=connections)
    config = uvicorn.Config(
        make_app(app_state),
        # Its warnings say what clients sent: anybody could fill the log with them.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        http=cast("type[asyncio.Protocol]", http),
        # What a header says about the client is not to be trusted.
        proxy_headers=False,
        ws="websockets-sansio",
        ws_max_size=_WEBSOCKET_BYTES,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_refused_websocket)
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app_state.stopping.set)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    stopping = asyncio.create_task(app_state.stopping.wait())
    await asyncio.wait(
        [serving, asyncio.create_task(server.ready.wait())],
        return_when=asyncio.FIRST_COMPLETED,
    )
    if server.started:
        _announce(app_state, sockets[0], upkeep)
        # What was loaded at the start never becomes garbage: collections need not look
        # at it again.
        gc.collect()
        gc.freeze()
        # By default the collector looks at everything there is again and again while
        # many jobs arrive, which takes half as long as taking them in, and holds up
        # everyone else.
        gc.set_threshold(20_000, 20, 20)
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not app_state.controller.requests.running_jobs():
        # Where something runs, agents stay: they keep its time, its checkpoints and how
        # it ended.
        await app_state.controller.dismiss_agents()
    app_state.stream.close()
    server.should_exit = True
    await serving
    app_state.home.server.unlink(missing_ok=True)
    app_state.home.server_socket.unlink(missing_ok=True)
    if settings.shared.socket:
        settings.shared.socket.unlink(missing_ok=True)


def _is_no_refused_websocket(record: logging.LogRecord) -> bool:
    """False for what uvicorn says about a WebSocket that gets an answer of HTTP, which
    it takes for a fault of ours.
    """
    return "without completing handshake" not in record.getMessage()


def _announce(
    app_state: AppState, listener: socket.socket, upkeep: dict[str, Any]
) -> None:
    """Tell clients where the server is, atomically: they wait for this file. `upkeep`
    tells them and the keeper who starts it again, and how.
    """
    body = {
        "url": url_of(listener),
        "pid": os.getpid(),
        "version": __version__,
        "socket": str(app_state.home.server_socket),
    }
    file = app_state.home.server
    document = json.dumps({**body, **upkeep})
    write_beneath(file.parent, file.name, document.encode())
    log.info("serving", **body)


if __name__ == "__main__":
    main()
