"""`/api/v1/recommendations`: what a training program needs, read off its text."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from pydantic import Field

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.strict_model import StrictModel
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState

router = api_router(tag="recommendations")

# A long program takes seconds: the threads that others use stay free.
_threads = ThreadPoolExecutor(2, "recommendations")
_Text = Annotated[str, Field(max_length=2_000_000)]
_Word = Annotated[str, Field(max_length=10_000)]
_Path = Annotated[str, Field(min_length=1, max_length=1_000)]


class Program(StrictModel):
    """A program: the texts of its files by path, with `/` between folders; `entry` is
    the file that is run, `arguments` are its own, and `launcher` the words before it,
    such as `["torchrun", "--nproc-per-node", "4"]`.
    """

    files: dict[_Path, _Text] = Field(min_length=1, max_length=2_000)
    entry: _Path
    arguments: list[_Word] = Field(default_factory=list, max_length=1_000)
    launcher: list[_Word] = Field(default_factory=list, max_length=100)


@router.post("/recommendations")
async def make_recommendation(
    app_state: TheAppState, program: Program
) -> dict[str, Any]:
    """The needs of a program that is read and never run: GPUs and their memory, the
    tier, the confidence, each with the line it rests on; what it does not say is in
    `unknown`.
    """
    if program.entry not in program.files:
        fault = "is not one of the files"
        raise InvalidInputError.of("entry", fault, "name a key of files")
    tiers = list(app_state.controller.core.tiers)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, _recommend, program, tiers)


def _recommend(program: Program, tiers: list[Any]) -> dict[str, Any]:
    # Late: few servers are asked, and it brings a reader of YAML along.
    from gpuyard.insight.needs.recommend import recommend, to_json
    from gpuyard.insight.needs.sources import Sources

    sources = Sources(program.files, program.entry)
    found = recommend(sources, program.arguments, program.launcher, tiers)
    return to_json(found)
