"""The folder of an attempt that `node/runner/` runs, and what it has to do."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.providers.runner_archive import runner_archive
from gpuyard.providers.runner_files import read_exit, read_json

__all__ = ["AttemptFolder", "StagedInput", "read_exit", "read_json", "runner_order"]


@dataclass(frozen=True, slots=True)
class StagedInput:
    """The job's folder, checkpoint and workspace, as the host that runs it sees them.

    Without a `workdir` the job runs in a new folder. `resume_from` is the checkpoint to
    continue from, `datasets` has the folder of each by the variable that names it.
    """

    workdir: str | None = None
    resume_from: Path | None = None
    workspace: Path | None = None
    datasets: Mapping[str, Path] = field(default_factory=dict[str, Path])


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The paths of one attempt's files, under the provider's `spool`."""

    spool: Path
    attempt_id: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.spool / self.attempt_id

    @property
    def order(self) -> Path:
        """What the runner has to do."""
        return self.path / "order.json"

    @property
    def secrets(self) -> Path:
        """Variables with secret values; the runner removes it as soon as it has read
        it.
        """
        return self.path / "secrets.json"

    @property
    def job(self) -> Path:
        """The provider's reference; written once it is known."""
        return self.path / "job"

    @property
    def log(self) -> Path:
        """The job's output."""
        return self.path / "log"

    @property
    def exit(self) -> Path:
        """How it ended; written last."""
        return self.path / "exit.json"

    @property
    def started(self) -> Path:
        """When and where it started."""
        return self.path / "started.json"

    @property
    def processes(self) -> Path:
        """Which processes its program has had."""
        return self.path / "processes.json"

    @property
    def stop(self) -> Path:
        """Why it is being stopped; written before the stop signal is sent."""
        return self.path / "stop.json"

    @property
    def messages(self) -> Path:
        """The output of Slurm and of the runner itself; usually empty."""
        return self.path / "slurm.out"

    @property
    def again(self) -> Path:
        """Exists when Slurm has started the job a second time."""
        return self.path / "again.json"

    @property
    def checkpoints(self) -> Path:
        """The list of saved checkpoints."""
        return self.path / "checkpoints.json"

    @property
    def resume(self) -> Path:
        """The folder of the checkpoint to continue from."""
        return self.path / "resume"

    @property
    def script(self) -> Path:
        """The batch script of a job that has one instead of a command."""
        return self.path / "script"

    @property
    def work(self) -> Path:
        """The copy of the job's folder, until the runner has unpacked it."""
        return self.path / "work.tar"

    @property
    def unpacked(self) -> Path:
        """Written when that is done: what is older is not the job's."""
        return self.path / "unpacked.json"

    @property
    def runner(self) -> Path:
        """The runner's program: one file for all attempts of this version."""
        version = hashlib.sha256(runner_archive()).hexdigest()[:12]
        return self.spool / f"runner-{version}.pyz"

    def files(self, order: Mapping[str, Any], stdin: bytes | None) -> dict[Path, bytes]:
        """The files that must exist before the attempt is submitted, private to their
        owner. Secrets have a file of their own, which the runner removes.
        """
        secrets: Mapping[str, str] = order.get("secrets") or {}
        public = {name: value for name, value in order.items() if name != "secrets"}
        files = {
            self.runner: runner_archive(),
            self.order: json.dumps(public).encode(),
        }
        if stdin is not None:
            files[self.path / "stdin"] = stdin
        if secrets:
            files[self.secrets] = json.dumps(dict(secrets)).encode()
        return files


def runner_order(
    order: AttemptOrder, staged: StagedInput, launcher: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What the runner has to do: the contents of `order.json`, and `secrets`.

    `launcher` is the command that starts the program on each node of a job on several
    nodes.
    """
    command = list(order.command)
    ids = {
        "GPUYARD_JOB_ID": order.job_id,
        "GPUYARD_ATTEMPT_ID": order.attempt_id,
        "GPUYARD_ATTEMPT": str(order.token),
    }
    if staged.resume_from:
        command += order.resume_args(str(staged.resume_from))
        ids["GPUYARD_RESUME_FROM"] = str(staged.resume_from)
    if staged.workspace:
        ids["GPUYARD_WORKSPACE"] = str(staged.workspace)
    for variable, folder in staged.datasets.items():
        ids[variable] = str(folder)
    checkpoint = {
        "path": order.checkpoint.path,
        "signal": order.checkpoint.signal,
        "every_s": order.checkpoint.every_s,
    }
    return {
        "command": list(launcher) or command,
        "share": command,
        "workdir": staged.workdir,
        "environment": dict(order.environment),
        "secrets": dict(order.secrets),
        "gpus": order.gpu_spec.gpu_count > 0,
        "stdin": order.stdin is not None,
        "retries": order.retries,
        "timeout_s": order.timeout_s,
        "grace_s": order.grace_s,
        "checkpoint": checkpoint,
        "ids": ids,
    }
