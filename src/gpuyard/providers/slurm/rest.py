"""Talks to Slurm over HTTP: `slurmrestd`, on a unix socket or another host."""

import asyncio
import getpass
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm import parse_commands, parse_rest
from gpuyard.providers.slurm.client import SlurmRefusedError, SlurmRequest
from gpuyard.providers.slurm.config import VERSIONS, SlurmSettings
from gpuyard.providers.slurm.parse_rest import Document
from gpuyard.providers.slurm.records import Hardware, SlurmRow

if TYPE_CHECKING:
    import httpx

TOKEN = "SLURM_JWT"
_NO_ACCOUNTING = (
    "slurmrestd is not asked for accounts: exit codes and end times of jobs that could"
    " not leave their own are missing"
)
_PASSED_VARIABLES = ("PATH", "HOME", "USER", "LANG")


class RestClient:
    """`slurmrestd`. See `SlurmClient`.

    The token is read from the environment for each request. No error shows it.
    """

    runner_polls = True

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._version = settings.rest_version
        self._user = os.environ.get("SLURM_USER") or getpass.getuser()

    def _connection(self) -> "httpx.AsyncClient":
        import httpx  # late: a server without it needs no HTTP client

        if self._client is None:
            url = self._settings.rest or ""
            socket = None
            if url.startswith("unix://"):
                socket = url.removeprefix("unix://")
                url = "http://slurm"
            self._client = httpx.AsyncClient(
                base_url=url,
                timeout=self._settings.timeout_s,
                trust_env=False,
                transport=httpx.AsyncHTTPTransport(uds=socket),
            )
        return self._client

    def _headers(self) -> dict[str, str]:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            return {}  # the owner of a unix socket needs none
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise _not_connected(f"{TOKEN} holds what is no token.")
        return {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": token}

    async def _send(
        self, method: str, path: str, body: Document | None = None
    ) -> tuple[int, Document]:
        """The HTTP status and document of the answer; ProviderError without one."""
        import httpx

        try:
            async with self._slots, asyncio.timeout(self._settings.timeout_s):
                answer = await self._connection().request(
                    method, path, json=body, headers=self._headers()
                )
        except (TimeoutError, httpx.TimeoutException):
            message = (
                f"slurmrestd did not answer within {self._settings.timeout_s:g} s."
            )
            raise ProviderError(message, "slurm", "TIMEOUT") from None
        except httpx.HTTPError as error:
            message = (
                f"slurmrestd at {self._settings.rest} cannot be reached:"
                f" {error or type(error).__name__}"
            )
            raise _not_connected(message) from None
        if answer.status_code in (401, 403):
            raise _not_connected(
                f"slurmrestd does not let {self._user} in ({answer.status_code}): set"
                f" {TOKEN} in the environment to a valid token (`scontrol token`)."
            )
        try:
            found: Any = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            message = f"slurmrestd: {answer.status_code}, and no JSON object"
            raise _not_connected(message)
        return answer.status_code, cast("Document", found)

    async def _path(self, name: str) -> str:
        """A path in the newest API version that slurmrestd and we support."""
        if self._version is None:
            self._version = await self._newest_version()
        return f"/slurm/{self._version}/{name}"

    async def _newest_version(self) -> str:
        _, document = await self._send("GET", "/openapi/v3")
        offered = parse_rest.read_versions(document)
        for version in VERSIONS:
            if version in offered:
                return version
        raise _not_connected(
            f"slurmrestd speaks {', '.join(sorted(offered)) or 'no version'};"
            f" known are {', '.join(VERSIONS)}"
        )

    async def _get(self, name: str) -> Document:
        status, document = await self._send("GET", await self._path(name))
        errors = parse_rest.read_errors(document)
        if status != 200 or errors:
            message = f"slurmrestd: {errors or status}; is {TOKEN} still valid?"
            raise _not_connected(message)
        return document

    async def submit(
        self,
        request: SlurmRequest,
        script: str,
        label: str,
        output: Path,
        count: int = 1,
    ) -> str:
        """See SlurmClient."""
        job = properties(request)
        job["comment"] = label
        job["standard_output"] = str(output)
        if count > 1:
            job["array"] = f"0-{count - 1}"
        status, document = await self._send(
            "POST", await self._path("job/submit"), {"script": script, "job": job}
        )
        errors = parse_rest.read_errors(document)
        if errors and parse_commands.is_unreachable(errors):
            raise _not_connected(f"Slurm does not answer: {errors}")
        if errors and parse_rest.is_refusal(document):
            why, lacks_resources = parse_commands.read_refusal(errors)
            raise SlurmRefusedError(why, lacks_resources)
        job_id = document.get("job_id")
        if status != 200 or errors or not isinstance(job_id, int) or job_id <= 0:
            raise _not_connected(
                f"slurmrestd: {errors or status}, and no number of a job; is"
                f" {TOKEN} still valid?"
            )
        return str(job_id)

    async def submit_script(self, script: str, label: str) -> str:
        """Refused: slurmrestd ignores `#SBATCH` lines. See SlurmClient."""
        raise SlurmRefusedError(
            "slurmrestd reads no #SBATCH lines; for scripts of your own leave"
            " `rest` out",
            False,
        )

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """Nothing: slurmrestd is not asked for accounting. See SlurmClient."""
        return {}

    async def queue(self) -> list[SlurmRow]:
        """See SlurmClient."""
        return parse_rest.read_jobs(await self._get("jobs"), self._user)

    async def gone(self, job_ids: Sequence[str]) -> list[SlurmRow]:
        """Nothing: `queue` returns all that the controller knows. See SlurmClient."""
        return []

    async def cancel(self, job_id: str, *, signal_only: bool = False) -> str:
        """See SlurmClient.

        No signal is sent: it would reach the job's program itself. The runner checks
        by itself whether it has to stop.
        """
        if signal_only:
            return ""
        status, document = await self._send("DELETE", await self._path(f"job/{job_id}"))
        errors = parse_rest.read_errors(document)
        if status != 200 and not errors:
            return f"slurmrestd: {status}"
        return errors

    async def hardware(self) -> list[Hardware]:
        """See SlurmClient."""
        nodes, partitions = await asyncio.gather(
            self._get("nodes"), self._get("partitions")
        )
        return parse_rest.read_hardware(nodes, partitions, self._settings.partition)

    async def usable_nodes(self) -> set[str]:
        """See SlurmClient."""
        nodes = await self._get("nodes")
        return parse_rest.read_usable_nodes(nodes, self._settings.partition)

    async def missing(self) -> str:
        """See SlurmClient."""
        return _NO_ACCOUNTING

    async def close(self) -> None:
        """See SlurmClient."""
        if self._client is not None:
            await self._client.aclose()


def _not_connected(message: str) -> ProviderError:
    return ProviderError(message, "slurm", "NOT_CONNECTED")


def properties(request: SlurmRequest) -> dict[str, Any]:
    """A request as the job of `job/submit`.

    The warning signal is left out: slurmrestd cannot send it to the runner alone.
    """
    optional = {
        "cpus_per_task": request.cpus,
        "memory_per_node": request.memory_mb,
        "time_limit": request.minutes,
        "gres": request.gres,
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraints": request.constraint,
    }
    return {
        "name": request.name,
        "nodes": [request.nodes, request.nodes],
        "tasks_per_node": 1,
        "open_mode": "append",
        "current_working_directory": "/",
        "environment": {
            name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ
        },
        **{name: value for name, value in optional.items() if value},
    }
