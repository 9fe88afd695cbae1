"""An event loop on virtual time: when nothing is ready, time jumps to the next timer.
No threads, no sockets.

Whatever runs belongs to a `Life` (a simulated process) by its context; killing a life
drops everything it was to run, so that no line of it is executed any more, not even a
`finally`.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any

from gpuyard.domain.errors import LedgerError


class StandstillError(Exception):
    """Nothing is ready and no timer is set: everyone waits for someone else."""


class Life:
    """A process of the simulated world, from its start to its kill.

    Freed only with the world: see `VirtualLoop`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.parked: list[asyncio.Handle] = []
        self.context = copy_context()
        self.context.run(_LIFE.set, self)

    def spawn(self, loop: "VirtualLoop", work: Any) -> asyncio.Task[Any]:
        """Run a coroutine as part of this process."""
        return self.context.run(loop.create_task, work)


_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """`on_step` is called between any two rounds of callbacks; `thread_delays` gives
    the time until a function sent to a thread runs, and the time from then until its
    result is seen.

    Tasks of killed processes stay in `remembered`: collected earlier, their coroutines
    would be closed, and run their `finally` after all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.on_step: Callable[[], None] = lambda: None
        self.thread_delays: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self.in_thread: Callable[[Callable[[], Any]], Any] = lambda function: function()
        self.remembered: list[tuple[asyncio.Task[Any], Life | None]] = []
        self._selector = _Jump(self)
        self.set_exception_handler(self._fault)
        self.faults: list[str] = []
        self.set_task_factory(self._remember)

    def _remember(self, _loop: Any, work: Any, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, **more)
        self.remembered.append((task, _LIFE.get()))
        return task

    def time(self) -> float:
        return self.now

    def kill(self, life: Life) -> None:
        """As by `kill -9`: from here on nothing of it runs."""
        life.alive = life.frozen = False
        life.parked.clear()
        for handle in [*self._ready, *self._scheduled]:
            if handle._context.get(_LIFE) is life:
                handle.cancel()

    def freeze(self, life: Life) -> None:
        """As by SIGSTOP: nothing of it runs until it is thawed, and then all at
        once.
        """
        life.frozen = True
        for place, handle in enumerate(self._ready):
            if handle._context.get(_LIFE) is life:
                life.parked.append(handle)
                # The loop has counted what is ready before it began this round:
                # something must stay in its place.
                self._ready[place] = nothing = asyncio.Handle(lambda: None, (), self)
                nothing.cancel()
        for handle in [
            handle for handle in self._scheduled if handle._context.get(_LIFE) is life
        ]:
            life.parked.append(handle)
            self._scheduled.remove(handle)
            handle._scheduled = False
        heapq.heapify(self._scheduled)

    def thaw(self, life: Life) -> None:
        """As by SIGCONT: timers whose time has passed meanwhile are due now."""
        parked = life.parked
        life.parked = []
        life.frozen = False
        due = [handle for handle in parked if not self._is_later(handle)]
        self._ready.extend(
            sorted(due, key=lambda handle: getattr(handle, "_when", 0.0))
        )
        for handle in parked:
            if isinstance(handle, asyncio.TimerHandle) and self._is_later(handle):
                handle._scheduled = True
                heapq.heappush(self._scheduled, handle)

    def _is_later(self, handle: asyncio.Handle) -> bool:
        return isinstance(handle, asyncio.TimerHandle) and handle._when > self.now

    def call_soon(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        if self._is_out(handle):
            self._ready.pop()
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        if self._is_out(handle) and handle in self._scheduled:
            self._scheduled.remove(handle)
            heapq.heapify(self._scheduled)
            handle._scheduled = False
        return handle

    def _is_out(self, handle: asyncio.Handle) -> bool:
        """Whose process is dead is cancelled; whose process is frozen has to wait."""
        life = handle._context.get(_LIFE)
        if life is None or (life.alive and not life.frozen):
            return False
        if life.alive:
            life.parked.append(handle)
            return True
        handle.cancel()
        return False

    def run_in_executor(
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """There are no threads: `func` runs a moment later, and its result comes back
        another moment later.
        """
        future = self.create_future()
        before, after = self.thread_delays()

        def work() -> None:
            try:
                result = self.in_thread(lambda: func(*args))
                fault = None
            except Exception as error:  # noqa: BLE001 - told to whom it concerns
                result = None
                fault = error
            self.call_later(after, deliver, result, fault)

        def deliver(result: Any, fault: Exception | None) -> None:
            if future.done():
                return
            if fault is not None:
                future.set_exception(fault)
            else:
                future.set_result(result)

        self.call_later(before, work)
        return future

    def unheard(self) -> list[str]:
        """What tasks failed with while nobody asked: asyncio would say so when they are
        collected.

        Not those of a killed process: who would have asked is dead.
        """
        living = [task for task, life in self.remembered if life is None or life.alive]
        failed = [
            task
            for task in living
            if task.done() and not task.cancelled() and task._log_traceback
        ]
        return [
            f"{task.get_name()} failed with {task.exception()!r}" for task in failed
        ]

    def _fault(self, _loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
        # Of a commit that failed, everyone hears who waits.
        if not isinstance(said.get("exception"), LedgerError):
            self.faults.append(f"{said.get('message')}: {said.get('exception')!r}")

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _Jump:
    """What a loop takes for its selector: there is no I/O to wait for, so waiting is a
    jump in time.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StandstillError
        self._loop.now += timeout
        self._loop.on_step()
        return []


@contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """A loop of virtual time, set as the current one."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        yield loop
    finally:
        asyncio.set_event_loop(None)
        # What is left is dropped without running.
        loop._ready.clear()
        loop._scheduled.clear()
        loop.close()
