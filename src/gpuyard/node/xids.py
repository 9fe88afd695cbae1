"""The agent's ear for Xid errors: keeps the listening process going for the GPUs there are."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog

_AGAIN_S = 5.0
log = structlog.get_logger(__name__)


class XidListener:
    """`heard` gets each line of the process (see `devices.xids`); `listen_to` names the GPUs to listen to."""

    def __init__(self, heard: Callable[[dict[str, Any]], None]) -> None:
        self._heard = heard
        self._uuids: tuple[str, ...] = ()
        self._changed = asyncio.Event()

    def listen_to(self, uuids: Sequence[str]) -> None:
        """Listen to these from now on; nothing changes when they are the same as before."""
        if tuple(uuids) != self._uuids:
            self._uuids = tuple(uuids)
            self._changed.set()

    async def run(self) -> None:
        """Keep one process listening for ever; a new one takes over when the GPUs change."""
        while True:
            self._changed.clear()
            listening = asyncio.create_task(self._listen(self._uuids)) if self._uuids else None
            try:
                await self._changed.wait()
            finally:
                if listening:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, uuids: Sequence[str]) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpuyard.devices.xids", *uuids, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            assert process.stdout
            try:
                async for line in process.stdout:
                    with suppress(ValueError):
                        self._heard(json.loads(line))
                await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
            log.warning("the listener for Xid errors ended", code=process.returncode)
            await asyncio.sleep(_AGAIN_S)
