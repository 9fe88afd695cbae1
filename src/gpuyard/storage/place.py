"""Where a yard's blobs are: one place for its servers, their agents and providers, as `[storage]` says."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from gpuyard.config.paths import Home
from gpuyard.config.settings import StorageSettings
from gpuyard.storage.blobs import Blobs, BlobStore, open_blobs
from gpuyard.storage.streams import CHUNK

P = ParamSpec("P")
T = TypeVar("T")

# Threads of their own: a bucket that hangs would take all of the event loop's, and with them the ledger's commits and
# the end of jobs.
_threads = ThreadPoolExecutor(16, thread_name_prefix="blobs")
# A bucket that refuses connections is given up after 10 s.
_PATIENCE_S = 20.0


def open_store(home: Path, settings: StorageSettings) -> Blobs:
    """The store of `home`; InvalidInputError when the settings are wrong. Nobody is asked whether it can be used."""
    if settings.url is None:
        return BlobStore(Home(home).blobs)
    # Beside the ledger, since /tmp is often small, or memory.
    return open_blobs(settings.url, settings.options, scratch=home)


async def in_background(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do what reads or writes blobs in a thread."""
    call = partial(contextvars.copy_context().run, work, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def read_out(file: IO[bytes]) -> AsyncIterator[bytes]:
    """What a store's `file` holds, part by part; it is closed at the end, or when nobody wants the rest."""
    try:
        while data := await in_background(file.read, CHUNK):
            yield data
    finally:
        _threads.submit(file.close)  # not here: it waits for a read that is under way


async def problem_of(blobs: Blobs) -> str | None:
    """Why blobs cannot be kept just now; None when they can."""
    try:
        await asyncio.wait_for(in_background(blobs.check), _PATIENCE_S)
    except TimeoutError:
        return f"{blobs.name} does not answer."
    except OSError as error:
        return str(error)
    return None
