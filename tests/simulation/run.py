"""Running seeds: one world each, on a loop of its own, with seeded ids."""

import gc
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import structlog

from gpuyard.domain import ids
from tests.simulation.loop import StandstillError, virtual_loop
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.world import EPOCH_S, World
from tests.support.blank_ledger import blank_ledger

# The controller says these of itself in bad weather; anything else at this level is a
# fault that nobody expected.
_EXPECTED = {"a commit failed"}


@dataclass(frozen=True)
class Outcome:
    """How a seed ended: the broken promises, and the trace that leads to them."""

    seed: int
    faults: tuple[str, ...]
    trace: tuple[str, ...]


def run(seed: int, *, with_models: bool = False) -> Outcome:
    """One world from its beginning to its end; `with_models`: it also has models,
    prompts and batches.
    """
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir=_memory()))
    try:
        blank_ledger(folder / "ledger.db")
        with _silence():
            outcome = _live_through(seed, folder, with_models=with_models)
            gc.collect()
            # the first ends what was under way, the second frees what that held: open
            # files among it
            gc.collect()
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _live_through(seed: int, folder: Path, *, with_models: bool) -> Outcome:
    with virtual_loop() as loop:
        world = World(seed, loop, folder, with_models=with_models)
        product = world.fleet.in_place() if world.fleet else nullcontext()
        with _seeded_ids(seed, loop), _log_into(world), product:
            try:
                loop.run_until_complete(world.life.spawn(loop, world.live()))
            except BrokenPromiseError:
                pass
            except StandstillError:
                world.promises.broken("everything waits for something else")
            finally:
                if world.server:
                    world.server.kill()
                world.promises.close()
        for fault in loop.faults + loop.unheard():
            world.promises.broken(fault)
    return Outcome(seed, tuple(world.promises.faults), tuple(world.trace))


@contextmanager
def _silence() -> Iterator[None]:
    """Coroutines that were killed are closed when they are collected, and what they say
    to that is void.

    The collector runs only between seeds: no such coroutine may run on while the world
    does.
    """
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    gc.disable()
    gc.freeze()  # what was there before needs no looking at after each seed
    try:
        with warnings.catch_warnings():
            # Coroutines that were never awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        gc.unfreeze()
        gc.enable()
        sys.unraisablehook = hook


def _memory() -> str | None:
    """A file system in memory, where there is one: a simulated disk need not be a slow
    one.
    """
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextmanager
def _seeded_ids(seed: int, loop: Any) -> Iterator[None]:
    dice = Random(f"ids {seed}")
    real = ids._uuid7
    last = 0

    def uuid7() -> int:
        nonlocal last
        last = max(last + 1, int((EPOCH_S + loop.now) * 1000) << 12)
        return (
            (last >> 12) << 80
            | 0x7 << 76
            | (last & 0xFFF) << 64
            | 0b10 << 62
            | dice.getrandbits(62)
        )

    ids._uuid7 = uuid7
    try:
        yield
    finally:
        ids._uuid7 = real


@contextmanager
def _log_into(world: World) -> Iterator[None]:
    """What the controller logs goes into the trace; an error nobody expects is a broken
    promise.
    """

    def take(_logger: Any, method: str, said: dict[str, Any]) -> str:
        event = said.pop("event")
        fault = said.pop("exc_info", None)
        if method == "exception" and not isinstance(fault, BaseException):
            fault = sys.exc_info()[1]
        world.note(f"log {method}: {event} {said} {fault!r}")
        if method in ("error", "exception", "critical") and event not in _EXPECTED:
            world.promises.broken(f"{event}: {said} {fault!r}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[take], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
