"""Jobs that are batch scripts with `#SBATCH` options of their own.

A script is sent unchanged, and no runner watches it. So only Slurm knows its start and
end. Both are written where a runner would have written them: they are read like those
of other jobs, and they stay when Slurm has forgotten the job.
"""

import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.attempt_folder import AttemptFolder, read_json
from gpuyard.providers.runner_files import Content
from gpuyard.providers.slurm.client import SlurmClient
from gpuyard.providers.slurm.job_index import JobIndex
from gpuyard.providers.slurm.records import ENDS, SlurmRow, hosts
from gpuyard.providers.slurm.site import SlurmSite
from gpuyard.storage.place import in_background
from gpuyard.storage.untrusted import (
    UntrustedFileError,
    open_beneath,
    read_beneath,
    write_beneath,
)

# Accounting is late by seconds; after this long an end is written without it.
_ACCOUNTING_S = 15.0
# The most bytes in a note: as long as a path may be.
_NOTE = 4096
# The most bytes that Slurm takes as a script, unless it is told otherwise.
_MOST_SCRIPT = 4 << 20


def script_of(order: AttemptOrder) -> str | None:
    """The path of the job's batch script on this host; None when it is a command."""
    options: object = order.provider_options.get("slurm")
    if not isinstance(options, Mapping):
        return None
    path = cast("Mapping[str, object]", options).get("script")
    return str(path) if path else None


def read_script(path: str, order: AttemptOrder) -> str:
    """The text of the batch script at `path`, which lies in the job's folder;
    ProviderError. It blocks.

    The server reads it with its own rights, and jobs can read what it sends. So nothing
    is sent that is no script. Users may name only what everybody on this host may read.
    """
    try:
        with open_beneath(*_place(path, order.workdir)) as file:
            if order.user and not _everybody_may_read(file):
                raise UntrustedFileError("not everybody may read it: chmod -R o+rX")
            content = file.read(_MOST_SCRIPT + 1)
        if len(content) > _MOST_SCRIPT:
            raise UntrustedFileError(f"it has more than {_MOST_SCRIPT:,} bytes")
        if not content.startswith(b"#!"):
            raise UntrustedFileError("it is no script: it does not begin with #!")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"The script {path} cannot be read: {error}"
        raise ProviderError(message, "slurm", "BAD_SCRIPT") from None


def _place(path: str, workdir: str | None) -> tuple[Path, Path]:
    """The job's folder, and the way to its script from there."""
    folder = Path(workdir or "")
    script = folder / path
    if not folder.is_absolute() or not script.is_relative_to(folder):
        fault = f"it is not in the job's folder, workdir ({workdir or 'none'})"
        raise UntrustedFileError(fault)
    return folder, script.relative_to(folder)


def _everybody_may_read(file: IO[bytes]) -> bool:
    """Whether all users of this host may read it, and enter all folders above it."""
    if not os.fstat(file.fileno()).st_mode & stat.S_IROTH:
        return False
    where = Path(f"/proc/self/fd/{file.fileno()}").readlink()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in where.parents)


class SlurmScripts:
    """Sends scripts, and writes down their starts and ends.

    Slurm tells where a script's output is. That is noted in the folder `notes` of this
    host, where no job can change it.
    """

    def __init__(
        self, slurm: SlurmClient, site: SlurmSite, jobs: JobIndex, notes: Path
    ) -> None:
        self._notes = notes
        self._slurm = slurm
        self._site = site
        self._jobs = jobs
        self._is_script: dict[str, bool] = {}
        self._over_at: dict[str, float] = {}

    async def submit(
        self, path: str, order: AttemptOrder, folder: AttemptFolder
    ) -> str:
        """Send a script; returns its job. SlurmRefusedError when Slurm refuses it."""
        script = await in_background(read_script, path, order)
        note = json.dumps({"script": path}).encode()
        await self._site.write({folder.script: script.encode(), folder.order: note})
        job_id = await self._slurm.submit_script(script, folder.attempt_id)
        await self._jobs.add({job_id: folder.attempt_id})
        return job_id

    async def is_script(self, job_id: str) -> bool:
        """Whether this job is such a script."""
        await self._look_up([job_id])
        return self._is_script.get(job_id, False)

    async def _look_up(self, job_ids: Sequence[str]) -> None:
        unknown = [job_id for job_id in job_ids if job_id not in self._is_script]
        paths = {job_id: self._jobs.job_folder(job_id).script for job_id in unknown}
        if paths:
            existing = await self._site.read_all(list(paths.values()))
            for job_id, path in paths.items():
                self._is_script[job_id] = path in existing

    async def note(self, job_ids: Sequence[str], rows: Mapping[str, SlurmRow]) -> None:
        """Write down which of these jobs' scripts have begun or ended, by `rows`."""
        await self._look_up(job_ids)
        listed = [job_id for job_id in job_ids if job_id in rows]
        folders = {
            job_id: self._jobs.job_folder(job_id)
            for job_id in listed
            if self._is_script[job_id]
        }
        paths: list[Path] = []
        for folder in folders.values():
            paths += [folder.started, folder.exit, folder.stop]
        files = await self._site.read_all(paths) if paths else dict[Path, Content]()
        for job_id, folder in folders.items():
            row = rows[job_id]
            if row.status is JobStatus.PENDING or folder.exit in files:
                continue
            is_noted = await in_background(self._note(folder).exists)
            if folder.started not in files or not is_noted:
                await self._write_start(job_id, row, folder)
            if row.status is not JobStatus.RUNNING:
                stop = read_json(files.get(folder.stop))
                stop_reason = str(stop.get("reason") or "")
                await self._write_end(job_id, row, folder, stop_reason)

    async def _write_start(
        self, job_id: str, row: SlurmRow, folder: AttemptFolder
    ) -> None:
        details = await self._slurm.gone([job_id])
        output = details[0].output if details else ""
        start = {"at": row.started_at or time.time(), "host": hosts(row.nodes)}
        note = self._note(folder)
        await in_background(write_beneath, note.parent, note.name, output.encode())
        await self._site.write({folder.started: json.dumps(start).encode()})

    def _note(self, folder: AttemptFolder) -> Path:
        return self._notes / f"{folder.attempt_id}.output"

    async def log_of(self, folder: AttemptFolder) -> Path:
        """Where the output of an attempt is, of a script or another one."""
        note = self._note(folder)
        try:
            content = await in_background(read_beneath, note.parent, note.name, _NOTE)
        except OSError:
            return folder.log
        output = os.fsdecode(content)
        return Path(output) if output.startswith("/") else folder.log

    async def _write_end(
        self, job_id: str, row: SlurmRow, folder: AttemptFolder, stop_reason: str
    ) -> None:
        """Write its end once accounting has it too, or is later than usual."""
        used = await self._slurm.used(job_id)
        over_at = self._over_at.setdefault(job_id, time.monotonic())
        if used is None and time.monotonic() - over_at < _ACCOUNTING_S:
            return
        details = await self._slurm.gone([job_id])
        end = end_of(details[0] if details else row, stop_reason, used or {})
        await self._site.write({folder.exit: json.dumps(end).encode()})

    async def forget(self, job_id: str) -> None:
        """Drop what is kept of a job."""
        if job_id in self._jobs.attempts:
            note = self._note(self._jobs.job_folder(job_id))
            await in_background(note.unlink, missing_ok=True)
        self._is_script.pop(job_id, None)
        self._over_at.pop(job_id, None)


def end_of(
    row: SlurmRow, stop_reason: str, used: Mapping[str, float]
) -> dict[str, Any]:
    """The end of a job in the runner's form.

    `stop_reason` says why gpuyard stopped the job; empty when it did not.
    """
    ended_at = row.ended_at or time.time()
    reason = ENDS.get(row.state, Reason.EXIT_STATUS_LOST)
    if reason == Reason.CANCELLED and stop_reason != Reason.CANCELLED:
        reason = Reason.PREEMPTED
    code = None
    if not reason:
        code = -row.signal if row.signal else row.exit_code or 0
    usage: dict[str, float] = {}
    if row.started_at:
        usage["elapsed_s"] = ended_at - row.started_at
    usage.update(used)
    return {
        "exit_code": code,
        "reason": reason,
        "message": f"Slurm: {row.state}" if reason or code else None,
        "started_at": row.started_at,
        "ended_at": ended_at,
        "host": hosts(row.nodes),
        "usage": usage,
    }
