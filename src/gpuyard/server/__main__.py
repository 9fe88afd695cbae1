"""`python -m gpuyard.server`: one server for one home, until it is asked to stop or has been idle for long enough."""

import argparse
import asyncio
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn
import uvloop

from gpuyard import __version__
from gpuyard.config.database import find_database
from gpuyard.config.logs import configure_logging
from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings, load_settings
from gpuyard.controller.controller import Controller, local_providers
from gpuyard.domain.errors import GpuyardError, InvalidInputError, LedgerError
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.store import lock_ledger
from gpuyard.server.app import make_app
from gpuyard.server.auth import ensure_token
from gpuyard.server.stream import Stream
from gpuyard.server.yard import Yard
from gpuyard.storage.blobs import BlobStore

log = structlog.get_logger(__name__)


def main() -> None:
    """Run the server; an error it can explain is one line on stderr and the error's exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpuyard.server", description=__doc__)
    parser.add_argument("--home", type=Path, help="default: $GPUYARD_HOME or ~/.gpuyard")
    arguments = parser.parse_args()
    home = Home(arguments.home.absolute()) if arguments.home else Home.find()
    configure_logging()
    try:
        home.create()
        _run(home)
    except GpuyardError as error:
        sys.stderr.write(f"gpuyard: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(f"gpuyard: cannot use {home.root}: {error.strerror or error}\n")
        sys.exit(LedgerError.exit_code)


def _run(home: Home) -> None:
    settings = load_settings(home)
    lock = lock_ledger(home.lock)
    listener = _listen(settings)
    ledger = Ledger.open(find_database(home, settings.ledger.url))
    blobs = BlobStore(home.blobs)
    stream = Stream(ledger.queries)
    controller = Controller(ledger, settings, local_providers(home.root, settings), blobs, stream.changed)
    yard = Yard(home, settings, controller, blobs, stream, ensure_token(home.token))
    try:
        uvloop.run(_serve(yard, listener))
    finally:
        ledger.close()
        lock.close()


def _listen(settings: Settings) -> socket.socket:
    """The listening socket; loopback only, because the embedded server speaks plain HTTP."""
    host, port = settings.server.host, settings.server.port
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidInputError.of("server.host", f"is {host!r}", "use 127.0.0.1: this server speaks plain HTTP")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        remedy = "choose another, or 0 for a free one"
        raise InvalidInputError.of("server.port", f"{port} cannot be used: {error.strerror}", remedy) from None
    listener.listen(1024)
    return listener


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


async def _serve(yard: Yard, listener: socket.socket) -> None:
    config = uvicorn.Config(
        make_app(yard), log_level="warning", access_log=False, timeout_graceful_shutdown=3, ws="websockets-sansio",
        ws_ping_interval=None, ws_per_message_deflate=False,
    )  # fmt: skip
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, yard.stopping.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(yard.stopping.wait())
    await asyncio.wait([serving, asyncio.create_task(server.ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    if server.started:
        _announce(yard, listener)
        # What was loaded at the start never becomes garbage: collections need not look at it again.
        gc.collect()
        gc.freeze()
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not yard.controller.core.view.attempts:
        # Where something runs, agents stay: they keep its time, its checkpoints and how it ended.
        await yard.controller.dismiss_agents()
    yard.stream.close()
    server.should_exit = True
    await serving
    yard.home.server.unlink(missing_ok=True)


def _announce(yard: Yard, listener: socket.socket) -> None:
    """Tell clients where the server is, atomically: they wait for this file."""
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    body = {"url": url, "pid": os.getpid(), "version": __version__}
    temporary = yard.home.server.with_suffix(".tmp")
    temporary.write_text(json.dumps(body))
    temporary.rename(yard.home.server)
    log.info("serving", **body)


if __name__ == "__main__":
    main()
