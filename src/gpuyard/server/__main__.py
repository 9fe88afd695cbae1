"""`python -m gpuyard.server`: one server for one home, until it is asked to stop or has
been idle for long enough.
"""

import gc

from gpuyard.config.plain_structlog import import_structlog
from gpuyard.config.private_environment import (
    digest_of_keys,
    execute,
    protect,
    public_settings,
)

if __name__ == "__main__":
    # Before all other imports, which take half a second.
    protect()
    # What is imported and read at the start is kept: to look for garbage in it, again
    # and again, would take a tenth of the time until jobs are scheduled.
    gc.disable()
    import_structlog()

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from gpuyard import __version__
from gpuyard.config.accounts import Accounts, workers_socket
from gpuyard.config.database import find_database
from gpuyard.config.dialling import loopback_id
from gpuyard.config.garbage import keep_what_is_loaded
from gpuyard.config.joined import read_membership
from gpuyard.config.logs import configure_logging
from gpuyard.config.open_files import allow_many_files, restore_files
from gpuyard.config.paths import Home
from gpuyard.config.proof import digest_of
from gpuyard.config.settings import Settings, load_settings
from gpuyard.controller.controller import Controller, configured_providers
from gpuyard.controller.malloc_trim import (
    MANY_JOBS,
    share_free_memory,
    trim_memory,
)
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    LedgerError,
    RefusedError,
)
from gpuyard.domain.events import Event
from gpuyard.domain.ids import new_id
from gpuyard.ledger.lease import Lease, Member
from gpuyard.ledger.ledger import Ledger
from gpuyard.notify.end_notices import EndNotices
from gpuyard.notify.mailbox import read_mail_server
from gpuyard.notify.notifier import Notifier
from gpuyard.notify.receiver import Receiver, read_receivers
from gpuyard.notify.senders import Senders
from gpuyard.resource_manager.manager import ResourceManager
from gpuyard.server.app_state import AppState
from gpuyard.server.auth import ensure_token
from gpuyard.server.election import Election
from gpuyard.server.home_hold import HomeHold
from gpuyard.server.leading import Leading
from gpuyard.server.listening import (
    listen_for_group,
    listen_for_workers,
    refuse_other_hosts,
    url_of,
)
from gpuyard.server.shared_authority import authority_in, known_fingerprint
from gpuyard.server.stream import EventStream
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import open_store
from gpuyard.storage.untrusted import write_beneath

if TYPE_CHECKING:
    from gpuyard.server.http_server import HttpServer

log = structlog.get_logger(__name__)


def main() -> None:
    """Run the server; an error it can explain is one line on stderr and the error's
    exit code.
    """
    arguments = _arguments()
    home = Home(arguments.home.absolute()) if arguments.home else Home.find()
    if arguments.check:
        _check(home)
        return
    configure_logging(home.logs / "server.log")
    share_free_memory()
    try:
        home.create()
        allow_many_files()  # a listener of the event stream is one
        _run(
            home,
            arguments.inherited,
            foreground=arguments.foreground,
            takes_over=arguments.take_over,
            again=arguments.again,
        )
    except GpuyardError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(
            f"gpuyard: cannot use {home.root}: {error.strerror or error}\n"
        )
        sys.exit(LedgerError.exit_code)


def _arguments() -> argparse.Namespace:
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
        "--take-over",
        action="store_true",
        help="stop a server that a command has started; its jobs run on",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="follow a server that was killed, unless `gpuyard down` gave that up",
    )
    parser.add_argument(
        "--inherited",
        type=int,
        nargs=3,
        metavar=("LOCK", "PORT", "SOCKET"),
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def _run(
    home: Home,
    inherited: list[int] | None,
    *,
    foreground: bool,
    takes_over: bool,
    again: bool,
) -> None:
    settings = load_settings(home)
    _refuse_joined(home)
    # The agent would find the same fault, but say it less.
    accounts = Accounts.of(settings.node)
    receivers = read_receivers(settings.notify, os.environ)
    blobs = open_store(home.root, settings.storage)
    if inherited:
        held = HomeHold.inherited(inherited, home, settings)
    else:
        held = HomeHold.taken(home, settings, takes_over=takes_over, again=again)
    if held is None:
        return
    url = settings.server.url or url_of(held.listener)
    app_state = _make_app_state(home, settings, held.ledger, blobs, url)
    if app_state.election and not inherited:
        _check_membership(app_state, app_state.election)
    if receivers:
        give_up_s = settings.notify.give_up_s
        app_state.notifier = _notifier(receivers, app_state.controller, give_up_s)
    app_state.end_notices = _end_notices(settings, app_state.controller)
    command = [sys.executable, "-m", "gpuyard.server", "--home", str(home.root)]
    if foreground:
        command.append("--foreground")
    app_state.start_over = lambda why: _start_over(command, held.descriptors, why)
    upkeep = _upkeep(settings, command, foreground=foreground)
    sockets = [held.listener, held.own]
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
        held.ledger.close()
        held.lock.close()


def _upkeep(
    settings: Settings, command: Sequence[str], *, foreground: bool
) -> dict[str, Any]:
    """Who starts this server again when it was killed, and how."""
    restart = None
    if settings.server.restart and not foreground:
        restart = {
            "command": [*command, "--again"],
            "environment": public_settings(),
            "keys": digest_of_keys(),
        }
    return {"restart": restart, "managed": foreground}


def _check(home: Home) -> None:
    """Read everything that the settings name as a server does when it starts; leave
    with the error's exit code when it would not start.
    """
    try:
        settings = load_settings(home)
        Accounts.of(settings.node)
        read_receivers(settings.notify, os.environ)
        open_store(home.root, settings.storage)
        find_database(home, settings.ledger.url)
        configured_providers(home.root, settings)
        refuse_other_hosts(settings)
    except GpuyardError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(error.exit_code)


def _refuse_joined(home: Home) -> None:
    """RefusedError if this home is that of a machine which has joined an instance."""
    membership = read_membership(home)
    if membership:
        raise RefusedError(
            f"{home.root} is part of the instance at {membership.host}, as"
            f" {membership.name}.",
            "Use another $GPUYARD_HOME for a server of your own.",
        )


def _check_membership(app_state: AppState, election: Election) -> None:
    """InvalidInputError when this server could not reach others, or they not it."""
    try:
        app_state.tls.context()
    except OSError as error:
        fault = f"is {app_state.tls.ca_file}: {error.strerror or error}"
        remedy = "name a file of certificates in PEM"
        raise InvalidInputError.of("server.ca_file", fault, remedy) from None
    election.refuse_loopback()
    if app_state.settings.server.agents_listen:
        known = known_fingerprint(app_state.queries)
        if known:
            authority_in(app_state.home.authority, known, listens=True)


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
    receivers: Sequence[Receiver], controller: Controller, give_up_s: float
) -> Notifier:
    core = controller.core
    return Notifier(
        receivers, core.queries, core.writer, Senders(), give_up_s=give_up_s
    )


def _end_notices(settings: Settings, controller: Controller) -> EndNotices:
    core = controller.core
    notify = settings.notify
    mail = None
    if notify.email is not None:
        server = read_mail_server(notify.email, os.environ)
        mail = (server, notify.email.sender)

    async def record(events: Sequence[Event]) -> None:
        core.emit(events)
        await core.committed(own_only=True)

    return EndNotices(
        core.queries,
        record,
        Senders(),
        mail,
        notify.internal_hosts,
        notify.give_up_s,
    )


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


async def _serve(
    app_state: AppState,
    sockets: list[socket.socket],
    upkeep: dict[str, Any],
) -> None:
    """Serve at the `sockets`: the first has the URL, the second is our own user's, and
    other users may open the rest.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app_state.stopping.set)
    leading = Leading(app_state)
    await leading.open()
    try:
        # Jobs are scheduled from now on. Clients wait until the rest is imported, which
        # takes as long as all before. It uses the room of what is garbage already; to
        # look for that among many jobs would hold up the first of them.
        if len(app_state.controller.core.view.jobs) < MANY_JOBS:
            keep_what_is_loaded()
        server = await asyncio.to_thread(_load_http_server, app_state, sockets)
        if not app_state.stopping.is_set():
            await server.begin(sockets)
            _announce(app_state, sockets[0], upkeep)
            keep_what_is_loaded()
            trim_memory()
            await server.until_ended(app_state.stopping)
        await _dismiss_agents(app_state)
        app_state.stream.close()
        await server.end()
    except Exception:
        # A keeper that has started this server will do so again. Without one, nobody
        # would ever need the agents that have just been started.
        if not app_state.home.server.exists():
            await _dismiss_agents(app_state)
        raise
    finally:
        await leading.close()
    app_state.home.server.unlink(missing_ok=True)
    app_state.home.server_socket.unlink(missing_ok=True)
    if shared := app_state.settings.shared.socket:
        shared.unlink(missing_ok=True)


async def _dismiss_agents(app_state: AppState) -> None:
    """Let the agents leave, unless something runs: then they keep its time, its
    checkpoints and how it ended.
    """
    if not app_state.controller.requests.running_jobs():
        await app_state.controller.dismiss_agents()


def _load_http_server(
    app_state: AppState, sockets: Sequence[socket.socket]
) -> "HttpServer":
    from gpuyard.server.plain_fastapi import do_without_old_models

    do_without_old_models()
    from gpuyard.server.http_server import make_http_server

    return make_http_server(app_state, sockets)


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
