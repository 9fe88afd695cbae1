"""Runs a flow that a program of Python has written as a dict."""

import asyncio
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from gpuyard.client.aio import AsyncClient
from gpuyard.client.bodies import local_deadline
from gpuyard.client.sync import Client
from gpuyard.domain.errors import GpuyardError, InvalidInputError, quoted
from gpuyard.flows.end_notice import check_addresses, tell_end
from gpuyard.flows.runner import Runner, StepEnd
from gpuyard.flows.spec import Flow, parse

Tell = Callable[[StepEnd], object]
"""Hears of a step that begins or is over."""


def run_flow(
    client: Client,
    flow: Mapping[str, Any],
    folder: Path | str = ".",
    *,
    tell: Tell | None = None,
    force: Collection[str] = (),
    deadline: float | str | None = None,
    notify: Sequence[str] = (),
) -> list[StepEnd]:
    """Run a flow of the same form as a flow file, in `folder`; what became of each
    step. A failed step raises nothing: see `StepEnd.is_fine`.

    `tell` hears of each step that begins or is over. Steps in `force` run whatever was
    done before. Steps without a deadline have that of the flow: UTC seconds, or text
    such as `8h`. The addresses in `notify` are told once, when all steps are over.
    InvalidInputError names the step and the field, before anything runs.
    """
    check_addresses(notify, "notify")
    runner = _runner(client, flow, folder, tell or _ignore, force, deadline)
    return _run(runner, notify)


async def run_flow_async(
    client: AsyncClient,
    flow: Mapping[str, Any],
    folder: Path | str = ".",
    *,
    tell: Tell | None = None,
    force: Collection[str] = (),
    deadline: float | str | None = None,
    notify: Sequence[str] = (),
) -> list[StepEnd]:
    """As `run_flow`, without holding up the event loop, in which `tell` is called. If
    it is cancelled, the steps that run go on, and no more are begun.
    """
    loop = asyncio.get_running_loop()
    stopped = Event()
    hear = tell or _ignore

    def pass_on(done: StepEnd) -> None:
        if not stopped.is_set():
            loop.call_soon_threadsafe(hear, done)

    def run() -> list[StepEnd]:
        with Client(client.address) as own:
            runner = _runner(own, flow, folder, pass_on, force, deadline)
            runner.stopped = stopped
            return _run(runner, notify)

    check_addresses(notify, "notify")
    try:
        return await asyncio.to_thread(run)
    finally:
        stopped.set()


def _runner(
    client: Client,
    flow: Mapping[str, Any],
    folder: Path | str,
    tell: Tell,
    force: Collection[str],
    deadline: float | str | None,
) -> Runner:
    place = Path(folder).resolve()
    found = parse(flow, place.name or "flow")
    for name in force:
        if name not in found.steps:
            remedy = f"there are {', '.join(found.steps)}"
            raise InvalidInputError.of("force", f"{quoted(name)} is no step", remedy)
    return Runner(client, found, place, tell, force, local_deadline(deadline))


def _run(runner: Runner, notify: Sequence[str]) -> list[StepEnd]:
    try:
        done = runner.run()
    except GpuyardError as error:
        refused = StepEnd(runner.flow.name, "failed", str(error))
        _tell(runner.client, runner.flow, [*runner.done.values(), refused], notify)
        raise
    if not runner.stopped.is_set():
        _tell(runner.client, runner.flow, done, notify)
    return done


def _tell(
    client: Client, flow: Flow, done: Sequence[StepEnd], notify: Sequence[str]
) -> None:
    """Tell of the end; a refused address changes nothing of the flow."""
    if not notify:
        return
    try:
        tell_end(client, flow, done, notify)
    except GpuyardError as error:
        warnings.warn(f"nobody was told of the end: {error}", stacklevel=3)


def _ignore(_done: StepEnd) -> None:
    pass
