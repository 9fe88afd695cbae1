"""The folder of an attempt that `node/runner.py` runs: what goes in, and what comes out."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gpuyard
from gpuyard.domain.jobconfig import JobConfig, JobResult, JobStatus

_RUNNER = Path(gpuyard.__file__).parent / "node" / "runner.py"
_STOPPED = {"cancelled": JobStatus.CANCELLED}


@dataclass(frozen=True, slots=True)
class Laid:
    """What was laid out for an attempt, as the host that runs it sees it: the job's folder (None: one of its own),
    the checkpoint to go on from, the workspace."""

    workdir: str | None = None
    resume_from: Path | None = None
    workspace: Path | None = None


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """Where the files of one attempt lie, under the provider's `spool`."""

    spool: Path
    attempt_id: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.spool / self.attempt_id

    @property
    def order(self) -> Path:
        """What the runner is to do."""
        return self.path / "order.json"

    @property
    def job(self) -> Path:
        """What the provider calls it; written once that is known."""
        return self.path / "job"

    @property
    def log(self) -> Path:
        """All the job has written."""
        return self.path / "log"

    @property
    def exit(self) -> Path:
        """How it ended; written last."""
        return self.path / "exit.json"

    @property
    def started(self) -> Path:
        """When and where it began."""
        return self.path / "started.json"

    @property
    def stop(self) -> Path:
        """Why it is to end; written before it is told."""
        return self.path / "stop.json"

    @property
    def messages(self) -> Path:
        """What the engine and the runner themselves had to say; usually nothing."""
        return self.path / "slurm.out"

    @property
    def again(self) -> Path:
        """There when the engine has started it a second time."""
        return self.path / "again.json"

    @property
    def checkpoints(self) -> Path:
        """The list of the checkpoints put aside."""
        return self.path / "checkpoints.json"

    @property
    def resume(self) -> Path:
        """The folder of the checkpoint to go on from."""
        return self.path / "resume"

    @property
    def script(self) -> Path:
        """What was sent in place of an order."""
        return self.path / "script"

    @property
    def work(self) -> Path:
        """The copy of the job's folder, until the runner has unpacked it."""
        return self.path / "work.tar"

    @property
    def runner(self) -> Path:
        """The program that runs it: one file for all attempts of this version."""
        return self.spool / f"runner-{hashlib.sha256(_RUNNER.read_bytes()).hexdigest()[:12]}.py"

    def files(self, order: Mapping[str, Any], stdin: bytes | None) -> dict[Path, bytes]:
        """What has to be there before it is submitted."""
        found = {self.runner: _RUNNER.read_bytes(), self.order: json.dumps(order).encode()}
        return found if stdin is None else {**found, self.path / "stdin": stdin}


def order_of(config: JobConfig, laid: Laid, launcher: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `runner.py` is to do. `launcher` starts the shares of a gang, where the job is one."""
    options, checkpoint, resume_from = config.provider_options, config.checkpoint, laid.resume_from
    extra = [word.replace("{path}", str(resume_from)) for word in checkpoint.resume_args] if resume_from else []
    command = [*config.command, *extra]
    ids = {"GPUYARD_JOB_ID": str(options.get("job_id", "")), "GPUYARD_ATTEMPT_ID": config.attempt_id or "",
           "GPUYARD_ATTEMPT": str(config.token)}  # fmt: skip
    if resume_from:
        ids["GPUYARD_RESUME_FROM"] = str(resume_from)
    if laid.workspace:
        ids["GPUYARD_WORKSPACE"] = str(laid.workspace)
    return {
        "command": [*launcher] if launcher else command,
        "share": command,
        "workdir": laid.workdir,
        "environment": dict(config.environment),
        "gpus": config.gpu_spec.gpu_count > 0,
        "stdin": config.args_via_stdin is not None,
        "timeout_s": config.timeout_minutes * 60 if config.timeout_minutes else None,
        "grace_s": config.grace_s,
        "checkpoint": {"path": checkpoint.path, "signal": checkpoint.signal, "every_s": checkpoint.every_s},
        "ids": ids,
    }


def read_json(data: bytes | None) -> dict[str, Any]:
    """A file that the runner wrote; empty when it is not there or not whole."""
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def ended(job_id: str, end: Mapping[str, Any]) -> JobResult:
    """How it ended, from `exit.json`."""
    code, reason = end.get("exit_code"), str(end.get("reason") or "")
    status = JobStatus.COMPLETED if code == 0 and not reason else _STOPPED.get(reason, JobStatus.FAILED)
    message = end.get("message") or {"timed_out": "timed out"}.get(reason) or (reason or None)
    return JobResult(job_id, status, started_at=end.get("started_at"), completed_at=end.get("ended_at"),
                     exit_code=code, error_message=message, reason=reason, node=str(end.get("host") or ""),
                     gpus=tuple(end.get("gpus") or ()), usage=end.get("usage") or {})  # fmt: skip
