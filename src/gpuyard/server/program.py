"""A program that the server keeps running while it leads."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from gpuyard.config.paths import Home
from gpuyard.config.private_environment import handing_over
from gpuyard.config.rotation import open_log

log = structlog.get_logger(__name__)
# After it has ended, it is started again: at first soon, then less and less often.
_PAUSES_S = (5.0, 300.0)
_LONG_ENOUGH_S = 600.0
# It survives being killed; `gpuyard down` waits 20 s for the whole server.
_FAREWELL_S = 5.0


async def keep_running(words: Sequence[str], home: Home, output: Path) -> None:
    """Keep `gpuyard WORDS` running, with its output in a file, until cancelled.

    It holds the end of a pipe as its standard input. So it can tell when this server is
    killed, and leave.
    """
    pause_s, longest_s = _PAUSES_S
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        code = await _run(words, home, output)
        if loop.time() - began > _LONG_ENOUGH_S:
            pause_s = _PAUSES_S[0]
        log.warning("a program ended", program=" ".join(words), code=code)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


async def _run(words: Sequence[str], home: Home, output: Path) -> int:
    """Run it once; returns its exit code."""
    output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_log(output) as file, handing_over() as (environment, files):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gpuyard.cli.entry",
            *words,
            stdin=PIPE,
            stdout=file,
            stderr=file,
            cwd=home.root,
            env={**_without_address(environment), "GPUYARD_HOME": str(home.root)},
            pass_fds=files,
        )
    try:
        return await process.wait()
    finally:
        await _end(process)


def _without_address(environment: Mapping[str, str]) -> dict[str, str]:
    """It is to find this server by its home, whatever else this server was told."""
    return {name: one for name, one in environment.items() if name != "GPUYARD_URL"}


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _FAREWELL_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
