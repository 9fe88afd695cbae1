"""Jobs of a study on their way: to Slurm and back, by way of gpuyard's queue."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.studies.manifest import Entry

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.jobs import Job

_PAUSE_S = (0.2, 5.0)
_STATES = {"completed": "COMPLETED", "timed_out": "TIMEOUT"}


class SlurmJobManager:
    """Submits jobs through a client and waits for them."""

    def __init__(self, client: "Client", provider: str = "slurm", clock: Callable[[], float] = time.time) -> None:
        self._client, self._provider, self._clock = client, provider, clock

    def submit(self, entry: Entry, run_id: str, time_limit_s: float) -> None:
        """Submit a job's script, once: asked again after a crash, the same job is found. One that the yard refuses has
        failed."""
        experiment: dict[str, Any] = json.loads(Path(entry.exp_config_path).read_text())
        script = Path(entry.output_root) / "job.slurm"
        gpus = {"count": experiment["gpus_per_node"]} if experiment["device"] != "cpu" else {"count": 0}
        work = {
            "name": entry.strategy_id, "command": ["sbatch", str(script)], "provider": self._provider,
            "provider_options": {"slurm": {"script": str(script)}}, "workdir": entry.output_root,
            "resources": {"nodes": experiment["num_nodes"], "cpus": 1, "gpus": gpus},
            "estimated_duration_s": time_limit_s, "environment": {}, "labels": {"study": run_id},
            "idempotency_key": f"{entry.output_root}#{entry.attempt}"[-200:],
        }  # fmt: skip
        try:
            entry.gpuyard_job, entry.status = self._client.run(work).id, "SUBMITTED"
        except (InvalidInputError, RefusedError) as error:
            entry.end("FAILED", f"it was refused: {error}", self._clock())
        else:
            entry.submitted_at = self._clock()

    def monitor(self, entry: Entry, changed: Callable[[], None]) -> None:
        """Wait until a job is over; `changed` is called whenever something of it is new, but for its end: that counts
        once its results are read."""
        pause = _PAUSE_S[0]
        while not entry.over:
            new = self._learn(entry, self._client.job(entry.gpuyard_job or "").info)
            if entry.over:
                return
            if new:
                changed()
                pause = _PAUSE_S[0]
            time.sleep(pause)
            pause = min(pause * 1.3, _PAUSE_S[1])

    def _learn(self, entry: Entry, job: "Job") -> bool:
        before = entry.job_id, entry.state, entry.status
        number = (job.provider_ref or "").partition("_")[0]
        if number.isdigit():
            entry.job_id = int(number)
            entry.slurm_out = str(Path(entry.output_root) / "logs" / f"slurm-{number}.out")
        entry.state = job.state.value
        if job.state.terminal:
            status = _STATES.get(job.state.value, "FAILED")
            entry.elapsed_s, entry.max_rss_bytes = job.usage.get("elapsed_s"), job.usage.get("max_rss_bytes")
            entry.end(status, None if status == "COMPLETED" else _why(job), job.ended_at or self._clock())
        return before != (entry.job_id, entry.state, entry.status)

    def collect_artifacts(self, entry: Entry, collect: Callable[[Entry], None]) -> None:
        """Have a job's results read, once it is over."""
        if entry.over:
            collect(entry)


def _why(job: "Job") -> str:
    last = job.attempts[-1] if job.attempts else None
    words = [job.reason or "", (last.message if last else "") or ""]
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    return ": ".join(filter(None, [*words, code])) or job.state.value
