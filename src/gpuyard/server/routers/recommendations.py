"""`/api/v1/recommendations`: what a training program needs, read off its text, and what
was measured of its runs.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.program_needs import MeasuredNeeds, ProgramNeeds
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.insight.measured_runs import started_program
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import submitter_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.measured_needs import needs_of_runs
from gpuyard.server.permissions import visibility_of

router = api_router("/recommendations", tag="recommendations")

# A long program takes seconds, as a search in the ledger may: the threads that others
# use stay free.
_threads = ThreadPoolExecutor(2, "recommendations")
_Text = Annotated[str, Field(max_length=2_000_000)]
_Word = Annotated[str, Field(max_length=10_000)]
_Path = Annotated[str, Field(min_length=1, max_length=1_000)]
_Folder = Annotated[str, Field(max_length=4_096)]


class Program(StrictModel):
    """A program: the texts of its files by path, with `/` between folders; `entry` is
    the file that is run, `arguments` are its own, and `launcher` the words before it,
    such as `["torchrun", "--nproc-per-node", "4"]`.

    With the folder from which it is run (`workdir`), its own runs are found there, too;
    with `project`, also those of others in it.
    """

    files: dict[_Path, _Text] = Field(min_length=1, max_length=2_000)
    entry: _Path
    arguments: list[_Word] = Field(default_factory=list, max_length=1_000)
    launcher: list[_Word] = Field(default_factory=list, max_length=100)
    workdir: _Folder | None = None
    project: Name | None = None


class StartedCommand(StrictModel):
    """What was read off a program, and the command that is to start it."""

    needs: ProgramNeeds
    command: list[_Word] = Field(default_factory=list, max_length=2_000)
    workdir: _Folder | None = None
    project: Name | None = None


@dataclass(frozen=True, slots=True)
class _Asker:
    user: str | None
    visibility: Visibility


@router.post("")
async def make_recommendation(
    request: Request, app_state: TheAppState, program: Program
) -> dict[str, Any]:
    """The needs of a program that is read and never run: GPUs and their memory, the
    tier, the confidence, each with the line it rests on; what it does not say is in
    `unknown`. What was measured of its runs comes before what is computed.
    """
    if program.entry not in program.files:
        fault = "is not one of the files"
        raise InvalidInputError.of("entry", fault, "name a key of files")
    asker = _asker(request, app_state)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, _recommend, app_state, asker, program)


@router.post("/measured")
async def measured(
    request: Request, app_state: TheAppState, started: StartedCommand
) -> MeasuredNeeds:
    """What was measured of a program: `own`, of one's own runs and those of its
    project; `alike`, what runs of all programs of its kind have taught, without a word
    of whose they are.
    """
    asker = _asker(request, app_state)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, _measured, app_state, asker, started)


def _asker(request: Request, app_state: AppState) -> _Asker:
    user = submitter_of(request.scope)
    return _Asker(user, visibility_of(request.scope, app_state.controller))


def _measured(
    app_state: AppState, asker: _Asker, started: StartedCommand
) -> MeasuredNeeds:
    program = started_program(started.command, started.workdir)
    return needs_of_runs(
        app_state.queries,
        asker.visibility,
        asker.user,
        started.needs,
        program,
        started.project,
    )


def _recommend(app_state: AppState, asker: _Asker, program: Program) -> dict[str, Any]:
    # Late: few servers are asked, and it brings a reader of YAML along.
    from gpuyard.insight.needs.measured import answer_of, corrected, needs_of
    from gpuyard.insight.needs.recommend import recommend
    from gpuyard.insight.needs.sources import Sources

    sources = Sources(program.files, program.entry)
    tiers = list(app_state.controller.core.tiers)
    found = recommend(sources, program.arguments, program.launcher, tiers)
    started = StartedCommand(
        needs=needs_of(found),
        command=[*program.launcher, program.entry, *program.arguments],
        workdir=program.workdir,
        project=program.project,
    )
    return answer_of(corrected(found, _measured(app_state, asker, started)))
