"""Where a yard's blobs are: one place for its servers, their agents and providers, as `[storage]` says."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from gpuyard.config.paths import Home
from gpuyard.config.settings import StorageSettings
from gpuyard.storage.blobs import Blobs, BlobStore, open_blobs
from gpuyard.storage.streams import CHUNK

P = ParamSpec("P")
T = TypeVar("T")

# So many at once; the next one waits.
_MOST = 16
_turns: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()
# A bucket that refuses connections is given up after 10 s.
_PATIENCE_S = 20.0


def open_store(home: Path, settings: StorageSettings) -> Blobs:
    """The store of `home`; InvalidInputError when the settings are wrong. Nobody is asked whether it can be used."""
    if settings.url is None:
        return BlobStore(Home(home).blobs)
    # Beside the ledger, since /tmp is often small, or memory.
    return open_blobs(settings.url, settings.options, scratch=home)


async def in_background(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do what reads or writes blobs, or a disk that may hang, in a thread of its own.

    A bucket that hangs would take all threads of the event loop's pool, and with them the ledger's commits and the end
    of jobs; and whoever leaves need not wait for these.
    """
    loop = asyncio.get_running_loop()
    async with _turns.setdefault(loop, asyncio.Semaphore(_MOST)):
        done: asyncio.Future[T] = loop.create_future()
        call = partial(contextvars.copy_context().run, work, *arguments, **named)
        threading.Thread(target=_carry_out, args=(call, loop, done), daemon=True, name="blobs").start()
        return await done


def _carry_out(call: Callable[[], T], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]") -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  whoever waits is told
        told = partial(_tell, done, None, error)
    else:
        told = partial(_tell, done, result, None)
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(told)


def _tell(done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if done.done():
        return  # whoever waited was cancelled
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


async def read_out(file: IO[bytes]) -> AsyncIterator[bytes]:
    """What a store's `file` holds, part by part; it is closed at the end, or when nobody wants the rest."""
    try:
        while data := await in_background(file.read, CHUNK):
            yield data
    finally:
        threading.Thread(target=file.close, daemon=True).start()  # it waits for a read that is under way


async def problem_of(blobs: Blobs) -> str | None:
    """Why blobs cannot be kept just now; None when they can."""
    try:
        await asyncio.wait_for(in_background(blobs.check), _PATIENCE_S)
    except TimeoutError:
        return f"{blobs.name} does not answer."
    except OSError as error:
        return str(error)
    return None
