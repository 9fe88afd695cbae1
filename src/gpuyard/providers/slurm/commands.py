"""Talks to Slurm with its commands, which every cluster has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm import parse_commands
from gpuyard.providers.slurm.accounting import NO_ACCOUNTING, Accounting
from gpuyard.providers.slurm.client import SlurmRefusedError, SlurmRequest
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.records import Hardware, SlurmRow
from gpuyard.providers.slurm.site import CommandOutput, SlurmSite


class CommandClient:
    """`sbatch`, `squeue` and the like, run on the site. See `SlurmClient`."""

    runner_polls = False

    def __init__(self, site: SlurmSite, settings: SlurmSettings) -> None:
        self._site = site
        self._settings = settings
        self._accounting = Accounting(self._run)

    async def _run(self, *command: str, stdin: bytes = b"") -> CommandOutput:
        answer = await self._site.run(command, stdin)
        if answer.code and parse_commands.is_unreachable(answer.err):
            message = f"Slurm does not answer: {answer.err.strip()}"
            raise ProviderError(message, "slurm", "NOT_CONNECTED")
        return answer

    async def _output(self, *command: str) -> str:
        answer = await self._run(*command)
        if answer.code:
            message = f"{command[0]}: {answer.err.strip()}"
            raise ProviderError(message, "slurm", "NOT_CONNECTED")
        return answer.out

    async def submit(
        self,
        request: SlurmRequest,
        script: str,
        label: str,
        output: Path,
        count: int = 1,
    ) -> str:
        """See SlurmClient."""
        words = [
            f"--comment={label}",
            f"--output={output}",
            *options(request),
            *self._settings.sbatch_options,
        ]
        if count > 1:
            words.append(f"--array=0-{count - 1}")
        return await self._sbatch(*words, script=script)

    async def submit_script(self, script: str, label: str) -> str:
        """See SlurmClient."""
        return await self._sbatch("--parsable", f"--comment={label}", script=script)

    async def _sbatch(self, *words: str, script: str) -> str:
        """The job id: `sbatch --parsable` prints `ID` or `ID;CLUSTER`."""
        answer = await self._run("sbatch", *words, stdin=script.encode())
        if answer.code:
            why, lacks_resources = parse_commands.read_refusal(answer.err)
            raise SlurmRefusedError(why, lacks_resources)
        return answer.out.strip().split(";")[0]

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """See SlurmClient."""
        return await self._accounting.used(job_id)

    async def queue(self) -> list[SlurmRow]:
        """See SlurmClient."""
        wanted = ("-t", "all", "--me", "-o", parse_commands.QUEUE_FORMAT)
        output = await self._output("squeue", "-h", "-r", *wanted)
        return parse_commands.read_queue(output)

    async def gone(self, job_ids: Sequence[str]) -> list[SlurmRow]:
        """From accounting, or else from the controller. See SlurmClient."""
        rows = await self._accounting.ended(job_ids)
        found = {row.job_id for row in rows}
        for job_id in job_ids:
            if job_id in found:
                continue
            answer = await self._run("scontrol", "show", "job", "-o", job_id)
            row = None if answer.code else parse_commands.read_job(answer.out)
            if row is not None:
                # scontrol gives a job of an array another id.
                rows.append(replace(row, job_id=job_id))
        return rows

    async def cancel(self, job_id: str, *, signal_only: bool = False) -> str:
        """See SlurmClient."""
        signal_options = ("--signal=USR1", "--batch") if signal_only else ()
        answer = await self._run("scancel", *signal_options, job_id)
        if not answer.code:
            return ""
        return answer.err.strip() or "it failed"

    async def _sinfo(self, *words: str) -> str:
        partition = self._settings.partition
        partition_option = ("-p", partition) if partition else ()
        return await self._output("sinfo", "-h", *words, *partition_option)

    async def hardware(self) -> list[Hardware]:
        """See SlurmClient."""
        output = await self._sinfo("-e", "-o", parse_commands.HARDWARE_FORMAT)
        return parse_commands.read_hardware(output)

    async def usable_nodes(self) -> set[str]:
        """See SlurmClient."""
        output = await self._sinfo("-N", "-o", parse_commands.NODES_FORMAT)
        return parse_commands.read_usable_nodes(output)

    async def missing(self) -> str:
        """See SlurmClient."""
        return "" if await self._accounting.is_available() else NO_ACCOUNTING

    async def close(self) -> None:
        """The provider closes the site. See SlurmClient."""


def options(request: SlurmRequest) -> list[str]:
    """The options of `sbatch` for a request."""
    named = {
        "cpus-per-task": request.cpus,
        "mem": f"{request.memory_mb}M" if request.memory_mb else None,
        "time": request.minutes,
        "gres": request.gres,
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "signal": f"B:USR1@{request.warning_s}" if request.warning_s else None,
    }
    return [
        "--parsable",
        f"--job-name={request.name}",
        "--export=PATH,HOME,USER,LANG",
        "--open-mode=append",
        "--chdir=/",
        "--no-kill=off",
        f"--nodes={request.nodes}",
        "--ntasks-per-node=1",
        *(f"--{name}={value}" for name, value in named.items() if value),
        *(["--exclusive", "--no-requeue"] if request.exclusive else []),
    ]
