"""Runs the process that listens for Xid errors of this host's GPUs, for the agent."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from gpuyard.config.private_environment import public_environment

_RESTART_S = 5.0
log = structlog.get_logger(__name__)


class XidListener:
    """`handle` gets each line of the process (see `devices.xids`); `listen_to` names
    the GPUs.
    """

    def __init__(self, handle: Callable[[dict[str, Any]], None]) -> None:
        self._handle = handle
        self._uuids: tuple[str, ...] = ()
        self._changed = asyncio.Event()

    def listen_to(self, uuids: Sequence[str]) -> None:
        """Listen to these GPUs from now on; does nothing when they are the same as
        before.
        """
        if tuple(uuids) != self._uuids:
            self._uuids = tuple(uuids)
            self._changed.set()

    async def run(self) -> None:
        """Keep one listening process for ever, and replace it when the GPUs change."""
        while True:
            self._changed.clear()
            listening = None
            if self._uuids:
                listening = asyncio.create_task(self._listen(self._uuids))
            try:
                await self._changed.wait()
            finally:
                if listening:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, uuids: Sequence[str]) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gpuyard.devices.xids",
                *uuids,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=public_environment(),
                start_new_session=True,
            )
            assert process.stdout
            try:
                async for line in process.stdout:
                    with suppress(ValueError):
                        self._handle(json.loads(line))
                await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
            log.warning("the listener for Xid errors ended", code=process.returncode)
            await asyncio.sleep(_RESTART_S)
