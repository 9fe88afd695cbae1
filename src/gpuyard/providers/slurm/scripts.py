"""Jobs that are a script of their own, with options of its own: it is sent as it is, and no runner watches it.

So all there is to know of one is what Slurm knows. It is written down where the runner would have written it: so it is
read alike, and is there still when Slurm has forgotten.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobConfig, JobStatus
from gpuyard.providers.folder import AttemptFolder, read_json
from gpuyard.providers.slurm import text
from gpuyard.providers.slurm.ask import Slurm
from gpuyard.providers.slurm.names import Names
from gpuyard.providers.slurm.site import Site
from gpuyard.providers.slurm.text import Row
from gpuyard.storage.place import in_background

# Accounts lag by seconds; after so long they are not waited for.
_ACCOUNTS_S = 15.0


def script_of(config: JobConfig) -> str | None:
    """The path of the script that a job is, on this host; None when it is a command."""
    given: object = config.provider_options.get("slurm")
    path = given.get("script") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return str(path) if path else None  # pyright: ignore[reportUnknownArgumentType]


class Scripts:
    """Sends scripts, and writes down what becomes of them."""

    def __init__(self, slurm: Slurm, site: Site, names: Names) -> None:
        self._slurm, self._site, self._names = slurm, site, names
        self._known: dict[str, bool] = {}
        self._over_at: dict[str, float] = {}

    async def submit(self, path: str, folder: AttemptFolder) -> str:
        """Send one; its job. RefusedError when Slurm will not have it."""
        try:
            script = await in_background(Path(path).read_text)
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderError(f"The script {path} cannot be read: {error}", "slurm", "BAD_SCRIPT") from None
        order = json.dumps({"script": path}).encode()
        await self._site.write({folder.script: script.encode(), folder.order: order})
        job_id = await self._slurm.submit_script(script, folder.attempt_id)
        await self._names.remember({job_id: folder.attempt_id})
        return job_id

    async def is_one(self, job_id: str) -> bool:
        """Is this job a script of its own?"""
        await self._learn([job_id])
        return self._known.get(job_id, False)

    async def _learn(self, job_ids: Sequence[str]) -> None:
        places = {self._folder(job_id).script: job_id for job_id in job_ids if job_id not in self._known}
        if places:
            there = await self._site.read_all(list(places))
            self._known |= {job_id: path in there for path, job_id in places.items()}

    def _folder(self, job_id: str) -> AttemptFolder:
        return self._names.folder(self._names.attempts[job_id])

    async def note(self, job_ids: Sequence[str], rows: Mapping[str, Row]) -> None:
        """Write down what of these jobs Slurm says now: that one has begun, that one is over."""
        await self._learn(job_ids)
        mine = [job_id for job_id in job_ids if self._known[job_id] and job_id in rows]
        folders = [self._folder(job_id) for job_id in mine]
        paths = [path for folder in folders for path in (folder.started, folder.exit, folder.stop)]
        files = await self._site.read_all(paths) if paths else dict[Path, bytes]()
        for job_id, folder in zip(mine, folders, strict=True):
            row = rows[job_id]
            if row.status is JobStatus.PENDING or folder.exit in files:
                continue
            if folder.started not in files:
                await self._begins(job_id, row, folder)
            if row.status is not JobStatus.RUNNING:
                await self._ends(job_id, row, folder, str(read_json(files.get(folder.stop)).get("reason") or ""))

    async def _begins(self, job_id: str, row: Row, folder: AttemptFolder) -> None:
        about = await self._slurm.gone([job_id])
        output = about[0].output if about else ""
        began = {"at": row.started_at or time.time(), "host": text.hosts(row.nodes)}
        links = {folder.log: output} if output.startswith("/") else {}
        await self._site.write({folder.started: json.dumps(began).encode()}, links)

    async def _ends(self, job_id: str, row: Row, folder: AttemptFolder, told: str) -> None:
        """Its end, once the accounts have it, too, or have had their time."""
        used = await self._slurm.used(job_id)
        since = self._over_at.setdefault(job_id, time.monotonic())
        if used is None and time.monotonic() - since < _ACCOUNTS_S:
            return
        about = await self._slurm.gone([job_id])
        end = end_of(about[0] if about else row, told, used or {})
        await self._site.write({folder.exit: json.dumps(end).encode()})

    def forget(self, job_id: str) -> None:
        """Nobody asks for this one any more."""
        self._known.pop(job_id, None)
        self._over_at.pop(job_id, None)


def end_of(row: Row, told: str, used: Mapping[str, float]) -> dict[str, Any]:
    """The end of a job as a runner writes it; `told` is why we wanted it to end."""
    done = row.ended_at or time.time()
    reason = text.ENDS.get(row.state, "exit_status_lost")
    if reason == "cancelled" and told != "cancelled":
        reason = "preempted"
    code = None if reason else -row.signal if row.signal else row.exit_code or 0
    elapsed = {"elapsed_s": done - row.started_at} if row.started_at else {}
    return {"exit_code": code, "reason": reason, "message": f"Slurm: {row.state}" if reason or code else None,
            "started_at": row.started_at, "ended_at": done, "host": text.hosts(row.nodes),
            "usage": {**elapsed, **used}}  # fmt: skip
