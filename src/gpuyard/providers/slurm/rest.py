"""Slurm asked over HTTP: `slurmrestd`, on a socket of this host or elsewhere."""

import asyncio
import getpass
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm import answers, text
from gpuyard.providers.slurm.answers import Document
from gpuyard.providers.slurm.ask import RefusedError, Request
from gpuyard.providers.slurm.config import VERSIONS, SlurmConfig
from gpuyard.providers.slurm.text import Hardware, Row

if TYPE_CHECKING:
    import httpx

TOKEN = "SLURM_JWT"
_MISSING = (
    "slurmrestd is not asked for accounts: exit codes and end times of jobs that could not leave their own are missing"
)
_PASSED = ("PATH", "HOME", "USER", "LANG")


class Rest:
    """`slurmrestd`. The token is read from the environment with each question, and stands in no error. See `Slurm`."""

    watched = True

    def __init__(self, settings: SlurmConfig) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._turn = asyncio.Semaphore(settings.concurrency)
        self._version = settings.rest_version
        self._user = os.environ.get("SLURM_USER") or getpass.getuser()

    def _connection(self) -> "httpx.AsyncClient":
        import httpx  # late: a server without it needs no HTTP client

        if self._client is None:
            place = self._settings.rest or ""
            path = place.removeprefix("unix://") if place.startswith("unix://") else None
            self._client = httpx.AsyncClient(
                base_url=place if path is None else "http://slurm", timeout=self._settings.timeout_s, trust_env=False,
                transport=httpx.AsyncHTTPTransport(uds=path),
            )  # fmt: skip
        return self._client

    def _headers(self) -> dict[str, str]:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            return {}  # on a socket of this host its owner needs none
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ProviderError(f"{TOKEN} holds what is no token.", "slurm", "NOT_CONNECTED")
        return {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": token}

    async def _send(self, method: str, path: str, body: Document | None = None) -> tuple[int, Document]:
        """The status and the document of an answer; ProviderError where there is none."""
        import httpx

        try:
            async with self._turn, asyncio.timeout(self._settings.timeout_s):
                answer = await self._connection().request(method, path, json=body, headers=self._headers())
        except (TimeoutError, httpx.TimeoutException):
            message = f"slurmrestd did not answer within {self._settings.timeout_s:g} s."
            raise ProviderError(message, "slurm", "TIMEOUT") from None
        except httpx.HTTPError as error:
            message = f"slurmrestd at {self._settings.rest} cannot be reached: {error or type(error).__name__}"
            raise ProviderError(message, "slurm", "NOT_CONNECTED") from None
        if answer.status_code in (401, 403):
            message = f"slurmrestd does not let {self._user} in ({answer.status_code}): set {TOKEN} in the environment"
            raise ProviderError(f"{message} to a valid token (`scontrol token`).", "slurm", "NOT_CONNECTED")
        try:
            found: Any = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ProviderError(f"slurmrestd: {answer.status_code}, and no JSON object", "slurm", "NOT_CONNECTED")
        return answer.status_code, cast("Document", found)

    async def _path(self, rest: str) -> str:
        """A path of the newest version that both know."""
        if self._version is None:
            _, document = await self._send("GET", "/openapi/v3")
            there = answers.read_versions(document)
            self._version = next((version for version in VERSIONS if version in there), None)
            if self._version is None:
                message = (
                    f"slurmrestd speaks {', '.join(sorted(there)) or 'no version'}; known are {', '.join(VERSIONS)}"
                )
                raise ProviderError(message, "slurm", "NOT_CONNECTED")
        return f"/slurm/{self._version}/{rest}"

    async def _get(self, rest: str) -> Document:
        status, document = await self._send("GET", await self._path(rest))
        against = answers.read_errors(document)
        if status != 200 or against:
            message = f"slurmrestd: {against or status}; is {TOKEN} still valid?"
            raise ProviderError(message, "slurm", "NOT_CONNECTED")
        return document

    async def submit(self, request: Request, script: str, label: str, output: Path, count: int = 1) -> str:
        """See Slurm."""
        job = {**properties(request), "comment": label, "standard_output": str(output)}
        job |= {"array": f"0-{count - 1}"} if count > 1 else {}
        status, document = await self._send("POST", await self._path("job/submit"), {"script": script, "job": job})
        against = answers.read_errors(document)
        if against and text.lost_way(against):
            raise ProviderError(f"Slurm does not answer: {against}", "slurm", "NOT_CONNECTED")
        if against and answers.is_refusal(document):
            raise RefusedError(*text.refused(against))
        job_id = document.get("job_id")
        if status != 200 or against or not isinstance(job_id, int) or job_id <= 0:
            message = f"slurmrestd: {against or status}, and no number of a job; is {TOKEN} still valid?"
            raise ProviderError(message, "slurm", "NOT_CONNECTED")
        return str(job_id)

    async def submit_script(self, script: str, label: str) -> str:
        """It reads no `#SBATCH` lines. See Slurm."""
        raise RefusedError("slurmrestd reads no #SBATCH lines; for scripts of your own leave `rest` out", False)

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """It is not asked for accounts. See Slurm."""
        return {}

    async def queue(self) -> list[Row]:
        """See Slurm."""
        return answers.read_jobs(await self._get("jobs"), self._user)

    async def gone(self, job_ids: Sequence[str]) -> list[Row]:
        """Nothing: `queue` brings all that the controller knows. See Slurm."""
        return []

    async def cancel(self, job_id: str, *, kindly: bool = False) -> str:
        """A kind word is not carried: a signal would reach the program itself, and the runner looks. See Slurm."""
        if kindly:
            return ""
        status, document = await self._send("DELETE", await self._path(f"job/{job_id}"))
        return answers.read_errors(document) or ("" if status == 200 else f"slurmrestd: {status}")

    async def hardware(self) -> list[Hardware]:
        """See Slurm."""
        nodes, partitions = await asyncio.gather(self._get("nodes"), self._get("partitions"))
        return answers.read_hardware(nodes, partitions, self._settings.partition)

    async def usable(self) -> set[str]:
        """See Slurm."""
        return answers.read_usable(await self._get("nodes"), self._settings.partition)

    async def missing(self) -> str:
        """See Slurm."""
        return _MISSING

    async def close(self) -> None:
        """See Slurm."""
        if self._client is not None:
            await self._client.aclose()


def properties(request: Request) -> dict[str, Any]:
    """A request as the job of `job/submit`. The warning is left out: none reaches the runner alone here."""
    named = {
        "cpus_per_task": request.cpus, "memory_per_node": request.memory_mb, "time_limit": request.minutes,
        "gres": request.gres, "partition": request.partition, "account": request.account, "qos": request.qos,
        "constraints": request.constraint,
    }  # fmt: skip
    return {
        "name": request.name, "nodes": [request.nodes, request.nodes], "tasks_per_node": 1, "open_mode": "append",
        "current_working_directory": "/",
        "environment": {name: os.environ[name] for name in _PASSED if name in os.environ},
        **{name: value for name, value in named.items() if value},
    }  # fmt: skip
