"""The process that speaks to SkyPilot (`bridge.py`), and calls to it."""

import asyncio
import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import (
    CAPACITY,
    CREDENTIALS,
    DENIED,
    QUOTA,
    SETTING,
)
from gpuyard.providers.skypilot.config import SkyPilotConfig

# By the name of SkyPilot's exception.
_CODES = {
    "ResourcesUnavailableError": CAPACITY,
    "ResourcesMismatchError": SETTING,
    "NoCloudAccessError": CREDENTIALS,
    "InvalidCloudCredentials": CREDENTIALS,
    "CloudUserIdentityError": CREDENTIALS,
    "ApiServerAuthenticationError": CREDENTIALS,
    "PermissionDeniedError": DENIED,
    "UserRequestRejectedByPolicy": DENIED,
    "InvalidSkyPilotConfigError": SETTING,
    "ApiServerConnectionError": "NOT_CONNECTED",
    "ServerTemporarilyUnavailableError": "NOT_CONNECTED",
    "ConnectionError": "NOT_CONNECTED",
    "ConcurrentWorkerExhaustedError": "THROTTLED",
    "RequestInterruptedError": "NOT_CONNECTED",
    "ConnectTimeout": "NOT_CONNECTED",
    "ReadTimeout": "TIMEOUT",
    "ChunkedEncodingError": "NOT_CONNECTED",
}
# SkyPilot's own server, which its SDK starts.
_SERVER_DOWN = "API server"
_QUOTA_WORDS = ("quota", "limit exceeded", "limitexceeded")
_MOST_BYTES = 64 * 2**20
_BRIDGE = Path(__file__).with_name("bridge.py")
# The folder in the home for the files of launches.
_LAUNCHES = "skypilot-launches"
log = structlog.get_logger(__name__)


def code_of(kind: str, message: str) -> str:
    """Our code for a fault of SkyPilot."""
    code = _CODES.get(kind, "SKYPILOT")
    if _SERVER_DOWN in message:
        return "NOT_CONNECTED"
    is_quota = any(word in message.lower() for word in _QUOTA_WORDS)
    return QUOTA if code == CAPACITY and is_quota else code


class SkyPilotClient:
    """Starts the process when it is first needed, and again after it has ended."""

    def __init__(self, settings: SkyPilotConfig) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def call(self, call: str, /, **arguments: Any) -> Any:
        """What the bridge answers. ProviderError."""
        process = await self._started()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        request = {"id": number, "call": call, "arguments": arguments}
        limit_s = self._settings.call_timeout_s
        assert process.stdin
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            return await asyncio.wait_for(answer, limit_s)
        except TimeoutError:
            message = f"SkyPilot has not answered for {limit_s:.0f} s ({call})."
            raise self._error(message, "TIMEOUT") from None
        except (BrokenPipeError, ConnectionResetError, RuntimeError):
            # uvloop says RuntimeError where the pipe is closed.
            raise self._ended() from None
        finally:
            self._waiting.pop(number, None)

    async def _started(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process and self._process.returncode is None:
                return self._process
            try:
                self._process = await asyncio.create_subprocess_exec(
                    self._settings.python,
                    str(_BRIDGE),
                    str(Path(self._settings.home) / _LAUNCHES),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=_MOST_BYTES,
                    start_new_session=True,
                )
            except OSError as error:
                message = (
                    f"{self._settings.python} does not start ({error.strerror}). See"
                    " providers.skypilot.python: it must be the Python in whose"
                    " environment SkyPilot is installed."
                )
                raise self._error(message, SETTING) from None
            self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        try:
            while line := await process.stdout.readline():
                self._answer(json.loads(line))
        except ValueError as error:
            log.warning("what speaks to SkyPilot says nonsense", error=str(error))
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._ended())

    def _answer(self, answer: dict[str, Any]) -> None:
        waiting = self._waiting.get(answer["id"])
        if waiting is None or waiting.done():
            return
        fault = answer.get("fault")
        if fault is None:
            waiting.set_result(answer.get("value"))
            return
        code = code_of(fault["kind"], fault["message"])
        message = f"SkyPilot: {fault['message'] or fault['kind']}"
        waiting.set_exception(self._error(message, code))

    def _ended(self) -> ProviderError:
        python = self._settings.python
        return self._error(
            f"What speaks to SkyPilot has ended. Does `{python} -c 'import sky'` work?"
            " See providers.skypilot.python.",
            SETTING,
        )

    def _error(self, message: str, code: str) -> ProviderError:
        return ProviderError(message, self._settings.provider, code)

    async def close(self) -> None:
        """End the process. Clusters go on."""
        if self._process and self._process.returncode is None:
            self._process.terminate()
        if self._reading:
            await self._reading
