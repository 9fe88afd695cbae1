"""Opens the blob store that `[storage]` names, one for an instance's servers, agents
and providers, and runs its work in threads.
"""

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
from gpuyard.config.settings import StorageSettings, WorkspaceSettings
from gpuyard.storage.blobs import Blobs, BlobStore, needs_package, open_blobs
from gpuyard.storage.store import VARIABLES
from gpuyard.storage.streams import CHUNK
from gpuyard.storage.workspaces import RemoteWorkspaces

P = ParamSpec("P")
T = TypeVar("T")

# At most this many threads; the next call waits.
_MAX_THREADS = 16
_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = (
    WeakKeyDictionary()
)
# Longer than the 10 s after which a bucket that refuses connections is given up.
_CHECK_TIMEOUT_S = 20.0


def open_store(
    home: Path, settings: StorageSettings, workspaces: WorkspaceSettings | None = None
) -> Blobs:
    """The store of `home`; InvalidInputError when the settings are wrong. Jobs shall
    not see what leads to the bucket of `workspaces`, either.

    Does not check whether the store can be used.
    """
    store: Blobs
    if settings.url is None:
        store = BlobStore(Home(home).blobs)
    else:
        # In the home, because /tmp is often small, or in memory.
        store = open_blobs(settings.url, settings.options, scratch=home)
    if workspaces and workspaces.url:
        store.variables += VARIABLES[workspaces.url.partition(":")[0]]
    return store


def open_remote_workspaces(
    home: Home, settings: WorkspaceSettings
) -> RemoteWorkspaces | None:
    """The bucket of the workspaces, if they are in one; as `open_store`."""
    if settings.url is None:
        return None
    try:
        # Only users of a bucket need its library.
        from gpuyard.storage.workspace_bucket import WorkspaceBucket
    except ModuleNotFoundError as error:
        raise needs_package("workspaces", settings.url, error) from error
    return WorkspaceBucket(settings.url, settings.options, settings.root(home))


async def in_background(
    work: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """Run work on blobs, or on a disk that may hang, in a thread of its own.

    A bucket that hangs would take all threads of the event loop's pool, so that commits
    and the ends of jobs would have to wait. The threads are daemons: the process can
    exit without them.
    """
    loop = asyncio.get_running_loop()
    async with _slots.setdefault(loop, asyncio.Semaphore(_MAX_THREADS)):
        done: asyncio.Future[T] = loop.create_future()
        call = partial(contextvars.copy_context().run, work, *arguments, **named)
        threading.Thread(
            target=_run, args=(call, loop, done), daemon=True, name="blobs"
        ).start()
        return await done


def _run(
    call: Callable[[], T], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]"
) -> None:
    result: object = None
    fault: BaseException | None = None
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  the caller gets it
        fault = error
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_report, done, result, fault)


def _report(
    done: "asyncio.Future[Any]", result: object, error: BaseException | None
) -> None:
    if done.done():
        return  # the caller was cancelled
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


async def read_chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The content of a store's `file` in chunks; it is closed at the end, or when the
    caller wants no more.
    """
    try:
        while data := await in_background(file.read, CHUNK):
            yield data
    finally:
        # In a thread, because it waits for a read that is under way.
        threading.Thread(target=file.close, daemon=True).start()


async def problem_of(blobs: Blobs) -> str | None:
    """Why blobs cannot be stored now; None when they can."""
    try:
        await asyncio.wait_for(in_background(blobs.check), _CHECK_TIMEOUT_S)
    except TimeoutError:
        return f"{blobs.name} does not answer."
    except OSError as error:
        return str(error)
    return None
