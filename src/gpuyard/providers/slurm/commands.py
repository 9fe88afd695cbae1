"""Slurm asked by its own commands, which every cluster has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm import text
from gpuyard.providers.slurm.accounts import MISSING, Accounts
from gpuyard.providers.slurm.ask import RefusedError, Request
from gpuyard.providers.slurm.config import SlurmConfig
from gpuyard.providers.slurm.site import Answer, Site
from gpuyard.providers.slurm.text import Hardware, Row


class Commands:
    """`sbatch`, `squeue` and the like, run where the site says. See `Slurm`."""

    watched = False

    def __init__(self, site: Site, settings: SlurmConfig) -> None:
        self._site = site
        self._settings = settings
        self._accounts = Accounts(self._run)

    async def _run(self, *command: str, stdin: bytes = b"") -> Answer:
        answer = await self._site.run(command, stdin)
        if answer.code and text.lost_way(answer.err):
            raise ProviderError(f"Slurm does not answer: {answer.err.strip()}", "slurm", "NOT_CONNECTED")
        return answer

    async def _told(self, *command: str) -> str:
        answer = await self._run(*command)
        if answer.code:
            raise ProviderError(f"{command[0]}: {answer.err.strip()}", "slurm", "NOT_CONNECTED")
        return answer.out

    async def submit(self, request: Request, script: str, label: str, output: Path, count: int = 1) -> str:
        """See Slurm."""
        words = [f"--comment={label}", f"--output={output}", *options(request), *self._settings.sbatch_options]
        words += [f"--array=0-{count - 1}"] if count > 1 else []
        answer = await self._run("sbatch", *words, stdin=script.encode())
        if answer.code:
            raise RefusedError(*text.refused(answer.err))
        return answer.out.strip().split(";")[0]

    async def submit_script(self, script: str, label: str) -> str:
        """See Slurm."""
        answer = await self._run("sbatch", "--parsable", f"--comment={label}", stdin=script.encode())
        if answer.code:
            raise RefusedError(*text.refused(answer.err))
        return answer.out.strip().split(";")[0]

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """See Slurm."""
        return await self._accounts.used(job_id)

    async def queue(self) -> list[Row]:
        """See Slurm."""
        return text.read_queue(await self._told("squeue", "-h", "-r", "-t", "all", "--me", "-o", text.QUEUE_FORMAT))

    async def gone(self, job_ids: Sequence[str]) -> list[Row]:
        """What the accounts, or else the controller, know. See Slurm."""
        rows = await self._accounts.ended(job_ids)
        rest = [job_id for job_id in job_ids if job_id not in {row.job_id for row in rows}]
        for job_id in rest:
            answer = await self._run("scontrol", "show", "job", "-o", job_id)
            row = None if answer.code else text.read_job(answer.out)
            rows += [replace(row, job_id=job_id)] if row else []  # it gives one of an array another name
        return rows

    async def cancel(self, job_id: str, *, kindly: bool = False) -> str:
        """See Slurm."""
        answer = await self._run("scancel", *(("--signal=USR1", "--batch") if kindly else ()), job_id)
        return (answer.err.strip() or "it failed") if answer.code else ""

    async def _sinfo(self, *words: str) -> str:
        partition = self._settings.partition
        return await self._told("sinfo", "-h", *words, *(("-p", partition) if partition else ()))

    async def hardware(self) -> list[Hardware]:
        """See Slurm."""
        return text.read_hardware(await self._sinfo("-e", "-o", text.HARDWARE_FORMAT))

    async def usable(self) -> set[str]:
        """See Slurm."""
        return text.read_usable(await self._sinfo("-N", "-o", text.NODES_FORMAT))

    async def missing(self) -> str:
        """See Slurm."""
        return "" if await self._accounts.there() else MISSING

    async def close(self) -> None:
        """The site is the provider's to close. See Slurm."""


def options(request: Request) -> list[str]:
    """The options of `sbatch` for a request."""
    named = {
        "cpus-per-task": request.cpus, "mem": f"{request.memory_mb}M" if request.memory_mb else None,
        "time": request.minutes, "gres": request.gres, "partition": request.partition, "account": request.account,
        "qos": request.qos, "constraint": request.constraint,
        "signal": f"B:USR1@{request.warning_s}" if request.warning_s else None,
    }  # fmt: skip
    return ["--parsable", f"--job-name={request.name}", "--export=PATH,HOME,USER,LANG", "--open-mode=append",
            "--chdir=/", "--no-kill=off", f"--nodes={request.nodes}", "--ntasks-per-node=1",
            *(f"--{name}={value}" for name, value in named.items() if value)]  # fmt: skip
