"""Runs a flow that a program of Python has written as a dict."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from gpuyard.client.sync import Client
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.flows.runner import Runner, StepEnd
from gpuyard.flows.spec import parse


def run_flow(
    client: Client,
    flow: Mapping[str, Any],
    folder: Path | str = ".",
    *,
    tell: Callable[[StepEnd], object] | None = None,
    force: Collection[str] = (),
) -> list[StepEnd]:
    """Run a flow of the same form as a flow file, in `folder`; what became of each
    step. A failed step raises nothing: see `StepEnd.is_fine`.

    `tell` hears of each step that begins or is over. Steps in `force` run whatever was
    done before. InvalidInputError names the step and the field, before anything runs.
    """
    place = Path(folder).resolve()
    found = parse(flow, place.name or "flow")
    for name in force:
        if name not in found.steps:
            remedy = f"there are {', '.join(found.steps)}"
            raise InvalidInputError.of("force", f"{quoted(name)} is no step", remedy)
    return Runner(client, found, place, tell or _ignore, force).run()


def _ignore(_done: StepEnd) -> None:
    pass
