"""The provider `slurm`. A job of Slurm's runs `node/runner.py` on a folder that its nodes and this host share.

Slurm says where a job is; how it ended, when, and what it printed, the runner leaves in the folder. So it works
without accounting, and an exit code is never guessed.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from gpuyard.domain.errors import InsufficientResourcesError, JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface, SavedFile
from gpuyard.providers.folder import AttemptFolder, order_of, read_json
from gpuyard.providers.slurm import text
from gpuyard.providers.slurm.ask import RefusedError, Request, Slurm, limit_s
from gpuyard.providers.slurm.carrying import Carrier
from gpuyard.providers.slurm.commands import Commands
from gpuyard.providers.slurm.config import SlurmConfig
from gpuyard.providers.slurm.names import Names
from gpuyard.providers.slurm.rest import Rest
from gpuyard.providers.slurm.results import result_of, taken_out, waits
from gpuyard.providers.slurm.scripts import Scripts, script_of
from gpuyard.providers.slurm.site import LocalSite, Site, SshSite
from gpuyard.providers.slurm.submissions import MOST, Submissions
from gpuyard.providers.slurm.text import Row
from gpuyard.providers.together import Together
from gpuyard.storage.place import open_store

_FOLLOW_S = 0.2
_LOOK_S = 5.0
_PART = 1 << 20
# After its grace a job that was told to leave is taken off by force.
_FORCE_S = 15.0
_UNSEEN_S = 15.0
# Slurm's own limit comes so long after ours and the grace.
_TIME_MARGIN_S = 240.0


class SlurmProvider(GpuProviderInterface):
    """Jobs on a Slurm cluster. `config`: see `SlurmConfig`."""

    PROVIDER_NAME: ClassVar[str] = "slurm"
    wants_storage: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = SlurmConfig.read(config)
        # As many as an array holds may come together. What Slurm itself is asked at once, the site bounds.
        self.concurrency, self.poll_s = max(self.settings.concurrency, MOST), self.settings.poll_s
        self.max_pending = self.settings.max_pending
        self._spool = Path(self.settings.spool or Path(self.settings.home) / "slurm").expanduser()
        self._site = self._make_site()
        blobs = open_store(Path(self.settings.home), self.settings.storage)
        self._carrier = Carrier(self._site, self._spool, self.settings, blobs)
        self._slurm: Slurm = Rest(self.settings) if self.settings.rest else Commands(self._site, self.settings)
        self.doing: Mapping[str, str] = {}
        self._submitting: dict[str, asyncio.Task[str]] = {}
        self._names = Names(self._site, self._spool)
        self._submissions = Submissions(self._slurm, self._site, self._names, self._spool, self.settings.python)
        self._scripts = Scripts(self._slurm, self._site, self._names)
        self._queue = Together(self._slurm.queue)
        self._hardware = Together(self._ask_hardware)
        self._force_at: dict[str, float] = {}
        self._unseen: dict[str, float] = {}
        self._limits: dict[str, float | None] = {}
        self._offered: dict[str, text.Hardware] = {}

    def _make_site(self) -> Site:
        config = self.settings
        environment = {**config.environment, "SLURM_TIME_FORMAT": "%s"}
        if config.host is None:
            return LocalSite(environment, config.timeout_s, config.concurrency)
        return SshSite(config.host, config.ssh_options, environment, config.timeout_s, config.concurrency)

    # --- submitting ---

    async def submit_job(self, job_config: JobConfig) -> str:
        """Lay the order down, then `sbatch`; an attempt that is there already is not submitted again."""
        attempt_id = job_config.attempt_id or new_id("attempt")
        under_way = self._submitting.get(attempt_id)
        if under_way is None:
            config = job_config.model_copy(update={"attempt_id": attempt_id})
            under_way = self._submitting[attempt_id] = asyncio.create_task(self._submit(config, attempt_id))
            under_way.add_done_callback(lambda _: self._submitting.pop(attempt_id, None))
        return await asyncio.shield(under_way)

    async def _submit(self, job_config: JobConfig, attempt_id: str) -> str:
        known = await self.find_by_attempt(attempt_id)
        if known is not None:
            return known
        folder = self._names.folder(attempt_id)
        try:
            return await self._send(job_config, folder)
        except RefusedError as error:
            await self._forget(attempt_id)
            raise self._refusal(error, job_config) from None
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                await self._forget(attempt_id)
            raise

    async def _send(self, job_config: JobConfig, folder: AttemptFolder) -> str:
        if script := script_of(job_config):
            if job_config.args_via_stdin is not None:
                fault = f"stdin: sbatch gives {script} no standard input; let the script read a file"
                raise ProviderError(fault, "slurm", "BAD_SCRIPT")
            return await self._scripts.submit(script, folder)
        gang = int(job_config.provider_options.get("nodes") or 1) > 1
        launcher = self._launcher(folder, job_config) if gang else ()
        if not self._limits:
            await self._hardware()
        order = order_of(job_config, await self._carrier.lay_out(folder, job_config), launcher)
        order |= {"limit_s": self._limit_s(job_config), "watch": self._slurm.watched}
        await self._site.write(folder.files(order, job_config.args_via_stdin))
        return await self._submissions.submit(self._request(job_config), folder.attempt_id)

    def _launcher(self, folder: AttemptFolder, config: JobConfig) -> tuple[str, ...]:
        cpus = [f"--cpus-per-task={int(config.gpu_spec.vcpus)}"] if config.gpu_spec.vcpus else []
        return ("srun", "--export=ALL", "--kill-on-bad-exit=1", "--ntasks-per-node=1", *cpus,
                self.settings.python, str(folder.runner), str(folder.path), "--share")  # fmt: skip

    def _limit_s(self, config: JobConfig) -> float | None:
        """When Slurm will end it, in seconds from its start; None when it will not."""
        most_s = self._limits.get(self._partition(config))
        return limit_s(config, config.grace_s + _TIME_MARGIN_S, most_s) or most_s

    def _partition(self, config: JobConfig) -> str:
        options = config.provider_options
        item = self._offered.get(str(options.get("offer", "")))
        return str(options.get("partition") or (item.partition if item else self.settings.partition or ""))

    def _request(self, config: JobConfig) -> Request:
        options, partition = config.provider_options, self._partition(config)
        item = self._offered.get(str(options.get("offer", "")))
        kind = item.gpu if item else self._gres(config.gpu_spec.gpu_type or "")
        request = Request.of(config, kind, config.grace_s + _TIME_MARGIN_S, self._limits.get(partition))
        named = {name: str(options.get(name) or getattr(self.settings, name) or "")
                 for name in ("account", "qos", "constraint")}  # fmt: skip
        return replace(request, partition=partition, **named)

    def _gres(self, gpu_type: str) -> str:
        """The site's own name for a type of GPU; empty where it has none, and any will do."""
        names = {item.gpu for item in self._offered.values()} | self.settings.gpus.keys()
        return next((name for name in sorted(names) if name.lower() == gpu_type.lower()), gpu_type.lower())

    def _refusal(self, error: RefusedError, config: JobConfig) -> ProviderError:
        if error.resources:
            return InsufficientResourcesError(f"Slurm: {error}", self.PROVIDER_NAME, config.gpu_spec)
        return ProviderError(f"Slurm refused the job: {error}", self.PROVIDER_NAME, "REFUSED")

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """See FindsAttempts."""
        return await self._submissions.find(attempt_id, self._queue)

    # --- asking ---

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """One `squeue` for all; what has left it is looked up in the accounts, where there are any."""
        rows = {row.job_id: row for row in await self._queue()}
        await self._names.learn(job_ids, rows)
        known = [job_id for job_id in job_ids if job_id in self._names.attempts]
        await self._scripts.note(known, rows)
        files = await self._files(job_id for job_id in known if not waits(rows.get(job_id)))
        gone = [i for i in known if i not in rows and self._names.folder(self._names.attempts[i]).exit not in files]
        rows |= {row.job_id: row for row in await self._slurm.gone(gone)} if gone else {}
        folders = {job_id: self._names.folder(self._names.attempts[job_id]) for job_id in known}
        rows |= {i: rows[text.others(i)] for i in known if i not in rows and text.others(i) in rows}
        found = {job_id: result_of(job_id, rows.get(job_id), folder, files) for job_id, folder in folders.items()}
        await self._take_off(rows, found)
        await self._give_up(found, files)
        return {job_id: result for job_id, result in found.items() if result is not None}

    async def _files(self, job_ids: Iterable[str]) -> Mapping[Path, bytes]:
        folders = [self._names.folder(self._names.attempts[job_id]) for job_id in job_ids]
        paths = [path for f in folders for path in (f.exit, f.started, f.stop, f.again, f.messages)]
        return await self._site.read_all(paths) if paths else {}

    async def _take_off(self, rows: Mapping[str, Row], found: Mapping[str, JobResult | None]) -> None:
        """What Slurm has queued again must not start; what was told to leave and has not is ended by force."""
        for job_id, result in found.items():
            row = rows.get(job_id)
            live = row is not None and row.status in (JobStatus.PENDING, JobStatus.RUNNING)
            over = result is not None and result.status not in (JobStatus.PENDING, JobStatus.RUNNING)
            again = live and over and result is not None and result.reason == "preempted"
            overdue = live and not over and time.monotonic() >= self._force_at.get(job_id, float("inf"))
            if again or overdue:
                await self._slurm.cancel(job_id)
            if over or row is None:
                self._force_at.pop(job_id, None)

    async def _give_up(self, found: dict[str, JobResult | None], files: Mapping[Path, bytes]) -> None:
        """One of an array that nobody knows and that has not begun was taken out of it. An answer may leave one out
        for a moment, and whoever is given up must not begin."""
        for job_id, result in found.items():
            folder = self._names.folder(self._names.attempts[job_id])
            if result is not None or "_" not in job_id or folder.started in files:
                self._unseen.pop(job_id, None)
                continue
            since = self._unseen.setdefault(job_id, time.monotonic())
            found[job_id] = JobResult(job_id, JobStatus.PENDING, reason="NotListed", error_message="Slurm lists it not")
            if time.monotonic() - since >= _UNSEEN_S:
                await self._slurm.cancel(job_id)
                found[job_id] = taken_out(job_id)

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        result = (await self.poll_jobs([job_id])).get(job_id)
        if result is None:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return result

    async def close(self) -> None:
        """Let go of the connection to the login node, or to slurmrestd."""
        await self._slurm.close()
        await self._site.close()

    # --- ending ---

    async def cancel_job(self, job_id: str) -> bool:
        """TERM, its grace, KILL."""
        return await self._stop(job_id, "cancelled", checkpoint=False)

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See Queues."""
        return await self._stop(job_id, "preempted" if checkpoint else "cancelled", checkpoint=checkpoint)

    async def _stop(self, job_id: str, reason: str, *, checkpoint: bool) -> bool:
        result = await self.get_job_status(job_id)
        if result.status not in (JobStatus.PENDING, JobStatus.RUNNING):
            return False
        folder = self._names.folder(self._names.attempts[job_id])
        files = await self._site.read_all([folder.stop, folder.order])
        told = read_json(files.get(folder.stop))
        if not told or (told["reason"] != "cancelled" and reason == "cancelled"):
            await self._site.write({folder.stop: json.dumps({"reason": reason, "checkpoint": checkpoint}).encode()})
        grace_s = float(read_json(files.get(folder.order)).get("grace_s") or 0.0)
        self._force_at.setdefault(job_id, time.monotonic() + 2 * grace_s + _FORCE_S)
        kindly = result.status is JobStatus.RUNNING and not await self._scripts.is_one(job_id)
        against = await self._slurm.cancel(job_id, kindly=kindly)
        if against and not kindly:
            raise ProviderError(f"scancel: {against}", self.PROVIDER_NAME, "TIMEOUT")
        return True

    async def forget_job(self, job_id: str) -> None:
        """Remove its folder."""
        attempt_id = await self._names.attempt_of(job_id)
        if attempt_id:
            await self._forget(attempt_id)
            await self._names.forget(job_id)
            self._scripts.forget(job_id)

    async def _forget(self, attempt_id: str) -> None:
        await self._submissions.forget(attempt_id)
        await self._carrier.forget(attempt_id)

    # --- output and checkpoints ---

    async def _known(self, job_id: str) -> AttemptFolder:
        if job_id not in self._names.attempts:
            await self.get_job_status(job_id)
        return self._names.folder(self._names.attempts[job_id])

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface."""
        parts = [part async for part in self.stream_logs(job_id, lines=lines, follow=False)]
        return b"".join(parts).decode(errors="replace")

    async def stream_logs(self, job_id: str, *, lines: int | None, follow: bool) -> AsyncIterator[bytes]:
        """See StreamsLogs. The log is one file, of which what is new is read."""
        folder = await self._known(job_id)
        offset, end, looked = 0, False, time.monotonic()
        if lines is not None:
            data = await self._site.read(folder.log) or b""
            tail = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
            offset = len(data)
            if tail:
                yield tail
            if not follow:
                return
        size = None if follow else await self._size(folder.log)
        while size is None or offset < size:
            part = await self._site.read(folder.log, offset, _PART if size is None else min(_PART, size - offset))
            if part:
                offset += len(part)
                yield part
            elif end or not follow:
                return
            else:
                await asyncio.sleep(_FOLLOW_S)
                end = bool(await self._site.read_all([folder.exit]))
                if not end and time.monotonic() - looked >= _LOOK_S:
                    looked = time.monotonic()
                    state = (await self.get_job_status(job_id)).status
                    end = state not in (JobStatus.PENDING, JobStatus.RUNNING)

    async def _size(self, path: Path) -> int:
        answer = await self._site.run(("wc", "-c", str(path)))
        return int(answer.out.split()[0]) if not answer.code else 0

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """See SavesCheckpoints."""
        return await self._carrier.checkpoints(await self._known(job_id))

    async def bring_back(self, job_id: str) -> None:
        """See BringsBack."""
        await self._carrier.bring_back(await self._known(job_id))

    # --- supply ---

    async def _ask_hardware(self) -> list[text.Hardware]:
        found = await self._slurm.hardware()
        self._offered = {f"slurm/{name}": item for name, item in text.named(found).items()}
        named = [(item.partition, item.limit_s) for item in found]
        self._limits = dict([*named, *(("", item.limit_s) for item in found if item.default)])
        return found

    async def offers(self) -> Sequence[Offer]:
        """One for each partition and kind of node."""
        await self._hardware()
        return [self._offer(offer_id, item) for offer_id, item in self._offered.items()]

    def _offer(self, offer_id: str, item: text.Hardware) -> Offer:
        known = self.settings.gpus.get(item.gpu)
        per_gpu = known.price_per_hour if known else None
        price = None if per_gpu is None else per_gpu * item.gpus
        return Offer(
            offer_id, "slurm", item.gpu, item.gpus, known.memory_gb if known else 0.0, "",
            item.cpus, item.memory_gb, item.nodes, price_per_hour=price, currency=self.settings.currency,
            price_source="gpuyard.toml" if price is not None else "", divisible=True, workspaces=True,
            problem=item.why_down,
        )  # fmt: skip

    async def list_available_gpus(self) -> list[GpuSpec]:
        """See GpuProviderInterface."""
        return [
            GpuSpec(gpu_type=offer.gpu or "gpu", gpu_count=offer.gpus, memory_gb=offer.gpu_gb or 1,
                    vcpus=offer.cpus, ram_gb=offer.memory_gb or None)
            for offer in await self.offers() if offer.gpus and not offer.problem
        ]  # fmt: skip

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """Seconds at the configured price of its GPUs; without one it costs nothing."""
        result = await self.get_job_status(job_id)
        seconds = (result.completed_at or time.time()) - result.started_at if result.started_at else 0.0
        total = self.settings.price_per_hour * Decimal(str(seconds)) / 3600
        return CostInfo(job_id, total, self.settings.currency, {"compute": total})

    async def health_check(self) -> dict[str, Any]:
        """Healthy while the controller answers and some node is up."""
        try:
            up = len(await self._slurm.usable())
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        missing, message = await self._slurm.missing(), f"{up} nodes can be used"
        return {"status": "healthy" if up else "unhealthy", "nodes": up, "accounting": not missing,
                "message": f"{message}; {missing}" if missing else message}  # fmt: skip
