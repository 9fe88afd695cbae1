"""Submit the jobs of a study to Slurm through gpuyard's queue, and wait for them."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.studies.manifest import ManifestEntry

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.jobs import Job

_PAUSE_S = (0.2, 5.0)
_STATES = {"completed": "COMPLETED", "timed_out": "TIMEOUT"}


class SlurmJobManager:
    """Submits jobs through a client and waits for them."""

    def __init__(
        self,
        client: "Client",
        provider: str = "slurm",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._provider = provider
        self._clock = clock

    def submit(self, entry: ManifestEntry, run_id: str, time_limit_s: float) -> None:
        """Submit a job's script; after a crash, the same job is found again.

        A job that the instance refuses has failed.
        """
        experiment: dict[str, Any] = json.loads(Path(entry.exp_config_path).read_text())
        work = {
            "name": entry.strategy_id,
            "workdir": entry.output_root,
            "estimated_duration_s": time_limit_s,
            "environment": {},
            "labels": {"study": run_id, "study-part": "strategy"},
            "idempotency_key": f"{entry.output_root}#{entry.attempt}"[-200:],
            **self._work(entry, experiment, time_limit_s),
        }
        try:
            entry.gpuyard_job = self._client.run(work).id
            entry.status = "SUBMITTED"
        except (InvalidInputError, RefusedError) as error:
            entry.end("FAILED", f"it was refused: {error}", self._clock())
        else:
            entry.submitted_at = self._clock()

    def _work(
        self, entry: ManifestEntry, experiment: Mapping[str, Any], time_limit_s: float
    ) -> dict[str, Any]:
        """Return what of a job depends on the place; its script has the time limit."""
        script = str(Path(entry.output_root) / "job.slurm")
        needs_gpus = experiment["device"] != "cpu"
        gpus = {"count": experiment["gpus_per_node"] if needs_gpus else 0}
        return {
            "command": ["sbatch", script],
            "provider": self._provider,
            "provider_options": {"slurm": {"script": script}},
            "resources": {"nodes": experiment["num_nodes"], "cpus": 1, "gpus": gpus},
        }

    def monitor(
        self,
        entries: Sequence[ManifestEntry],
        changed: Callable[[], None],
        wait_s: float = math.inf,
    ) -> None:
        """Wait until one of the jobs ends, at most `wait_s` seconds.

        `changed` is called after each change except the end, which counts only once the
        results have been read.
        """
        pause = _PAUSE_S[0]
        began = time.monotonic()
        while time.monotonic() - began < wait_s:
            has_changed = False
            for entry in entries:
                job = self._client.job(entry.gpuyard_job or "").info
                has_changed = self._learn(entry, job) or has_changed
                if entry.over:
                    return
            if has_changed:
                changed()
                pause = _PAUSE_S[0]
            time.sleep(pause)
            pause = min(pause * 1.3, _PAUSE_S[1])

    def _learn(self, entry: ManifestEntry, job: "Job") -> bool:
        before = entry.job_id, entry.state, entry.status
        entry.state = job.state.value
        entry.elapsed_s = job.usage.get("elapsed_s")
        self._learn_place(entry, job)
        if job.state.terminal:
            status = _STATES.get(job.state.value, "FAILED")
            entry.max_rss_bytes = job.usage.get("max_rss_bytes")
            entry.end(
                status,
                None if status == "COMPLETED" else _why(job),
                job.ended_at or self._clock(),
            )
        return before != (entry.job_id, entry.state, entry.status)

    def _learn_place(self, entry: ManifestEntry, job: "Job") -> None:
        """Note Slurm's number of the job, and where its log is."""
        number = (job.provider_ref or "").partition("_")[0]
        if number.isdigit():
            entry.job_id = int(number)
            entry.slurm_out = str(
                Path(entry.output_root) / "logs" / f"slurm-{number}.out"
            )

    def collect_artifacts(
        self, entry: ManifestEntry, collect: Callable[[ManifestEntry], None]
    ) -> None:
        """Call `collect` for a job that has ended."""
        if entry.over:
            collect(entry)


def _why(job: "Job") -> str:
    last = job.attempts[-1] if job.attempts else None
    words = [job.reason or "", (last.message if last else "") or ""]
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    return ": ".join(filter(None, [*words, code])) or job.state.value
