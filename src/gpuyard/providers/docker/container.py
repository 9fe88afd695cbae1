"""The arguments to create a container, and the fields of an existing one."""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount

from gpuyard.domain.attempt_order import (
    DEFAULT_ENVIRONMENT,
    AttemptOrder,
    ResumePoint,
)
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.docker.config import DockerConfig
from gpuyard.providers.job_folders import LoggingFolder
from gpuyard.providers.program_use import ProgramUse
from gpuyard.providers.runner_files import KeptLimits, read_limits
from gpuyard.storage.blobs import Blobs, BucketError

ATTEMPT = "gpuyard.attempt"
HOME = "gpuyard.home"
LIMITS = "gpuyard.limits"
"""The labels of a container: its attempt, its gpuyard home and its limits."""
# A shell joins standard output and standard error in order, and reads standard input
# from a file.
_SHELL = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
_SHELL_STDIN = ("/bin/sh", "-c", 'exec "$@" 2>&1 </gpuyard/stdin', "sh")
_WORK = "/gpuyard/work"
_RESUME = "/gpuyard/resume"


class ContainerArguments:
    """Builds the arguments of containers. Each attempt has a folder below `folder`."""

    def __init__(self, settings: DockerConfig, folder: Path, blobs: Blobs) -> None:
        self._settings = settings
        self._folder = folder
        self._blobs = blobs

    def of(self, order: AttemptOrder) -> dict[str, Any]:
        """The arguments of docker-py's `containers.create` for an attempt."""
        need = order.gpu_spec
        uuids = order.gpu_uuids if need.gpu_count else ()
        private = self._folder / order.attempt_id
        private.mkdir(parents=True, exist_ok=True, mode=0o700)
        mounts = self._mounts(private, order)
        command = list(order.command)
        resume_from = ""
        if order.resume_from:
            mounts.append(self._restore_checkpoint(private, order.resume_from))
            resume_from = f"{_RESUME}/{order.resume_from.name}"
            command += order.resume_args(resume_from)
        labels = {
            ATTEMPT: order.attempt_id,
            HOME: self._settings.home,
            LIMITS: json.dumps(_limits(order)),
        }
        gpus = DeviceRequest(device_ids=list(uuids), capabilities=[["gpu"]])
        return {
            "entrypoint": list(_SHELL if order.stdin is None else _SHELL_STDIN),
            "command": command,
            "environment": _environment(order, uuids, resume_from),
            "working_dir": order.workdir or _WORK,
            "mounts": mounts,
            "labels": labels,
            "device_requests": [gpus] if uuids else None,
            "mem_limit": int(need.ram_gb * (1 << 30)) if need.ram_gb else None,
            "nano_cpus": int(need.vcpus * 1e9) if need.vcpus else None,
            "pids_limit": self._settings.max_processes,
            "read_only": not self._settings.writable_root,
            "tmpfs": {"/tmp": ""},
            "security_opt": ["no-new-privileges"],
            "user": f"{os.getuid()}:{os.getgid()}",
            "network_mode": self._settings.network,
            "restart_policy": _restart_policy(order),
            "log_config": LogConfig(type="json-file", config={"max-size": "1000g"}),
            # Without an init process the program is process 1, which ignores TERM.
            "init": True,
        }

    def _mounts(self, private: Path, order: AttemptOrder) -> list[Mount]:
        """The folders and files of this host that the container sees."""
        folders = list(order.volumes.items())
        if order.workdir:
            folders.append((order.workdir, order.workdir))
        else:
            (private / "work").mkdir(exist_ok=True)
            folders.append((_WORK, str(private / "work")))
        if workspace := self._workspace(order):
            folders.append(("/workspace", workspace))
        mounts = [Mount(inside, outside, type="bind") for inside, outside in folders]
        if order.stdin is not None:
            path = private / "stdin"
            path.write_bytes(order.stdin)
            mounts.append(
                Mount("/gpuyard/stdin", str(path), type="bind", read_only=True)
            )
        return mounts

    def _restore_checkpoint(self, private: Path, resume: ResumePoint) -> Mount:
        folder = private / "resume"
        target = folder / resume.name
        try:
            self._blobs.restore(resume.sha256, target, directory=resume.directory)
        except BucketError:
            raise
        except OSError as error:
            message = f"The checkpoint cannot be read: {error}."
            raise ProviderError(message, "docker", "BAD_RESUME") from None
        return Mount(_RESUME, str(folder), type="bind")

    def _workspace(self, order: AttemptOrder) -> str | None:
        """The folder of this host to mount as `/workspace`; None when there is none."""
        if not order.workspace_folder:
            return self._settings.workspace
        folder = Path(order.workspace_folder)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)


def _restart_policy(order: AttemptOrder) -> dict[str, Any] | None:
    """How often the daemon runs a program again that has failed."""
    if not order.retries:
        return None
    return {"Name": "on-failure", "MaximumRetryCount": order.retries}


def runs_again(container: Container) -> bool:
    """Whether the daemon runs its program again when it fails."""
    policy = container.attrs["HostConfig"].get("RestartPolicy") or {}
    return policy.get("Name") == "on-failure"


def _limits(order: AttemptOrder) -> dict[str, Any]:
    return {
        "timeout_s": order.timeout_s,
        "grace_s": order.grace_s,
        "signal": order.checkpoint.signal,
        "every_s": order.checkpoint.every_s,
        "path": order.checkpoint.path,
    }


def _environment(
    order: AttemptOrder, uuids: Sequence[str], resume_from: str
) -> dict[str, str]:
    # This host's PATH and HOME do not apply in an image.
    defaults = {**DEFAULT_ENVIRONMENT, "HOME": "/tmp"}
    values = {**defaults, **order.whole_environment}
    values.pop("PATH", None)
    values |= {
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids) or "void",
        "GPUYARD_JOB_ID": order.job_id,
        "GPUYARD_ATTEMPT_ID": order.attempt_id,
        "GPUYARD_ATTEMPT": str(order.token),
    }
    if resume_from:
        values["GPUYARD_RESUME_FROM"] = resume_from
    if order.workspace_folder:
        values["GPUYARD_WORKSPACE"] = "/workspace"
    values |= {mount.variable: mount.path for mount in order.datasets}
    return values


def state_of(container: Container) -> dict[str, Any]:
    """The container's state in the daemon's last answer."""
    found: dict[str, Any] = container.attrs["State"]
    return found


def is_live(container: Container) -> bool:
    """Whether its program runs."""
    return container.status in ("running", "paused", "restarting")


def started_at(container: Container) -> float | None:
    """When its program began; None when it has not.

    Of a program that has run again, the daemon tells the last time only. So it is when
    the container was made.
    """
    last = instant(state_of(container)["StartedAt"])
    has_run_again = bool(container.attrs.get("RestartCount"))
    return instant(container.attrs["Created"]) if last and has_run_again else last


def limits_of(container: Container) -> KeptLimits:
    """Its timeout, grace and checkpoint signal; BrokenFileError when it is no container
    of ours.
    """
    return read_limits(container.labels.get(LIMITS) or "", "the container's labels")


def instant(text: str) -> float | None:
    """A time of Docker's in UTC seconds; None for never, which is the year 1.

    Docker's times have nanoseconds, which `fromisoformat` cannot read.
    """
    if text.startswith("0001"):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    whole_s = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return whole_s + float(f"0.{fraction or 0}")


def work_folder(container: Container) -> Path | None:
    """The folder of this host that is the container's working directory."""
    inside = container.attrs["Config"]["WorkingDir"]
    for mount in container.attrs["Mounts"]:
        if mount["Destination"] == inside:
            return Path(mount["Source"])
    return None


def logging_folder(container: Container, own: Path) -> LoggingFolder | None:
    """Where its program logs; folders below `own` are of one attempt each.

    Each container has a name of its own as its host, unless it shares the network of
    this host.
    """
    folder = work_folder(container)
    if folder is None:
        return None
    if folder.is_relative_to(own):
        return LoggingFolder(folder)
    if container.attrs["HostConfig"]["NetworkMode"] == "host":
        return None
    return LoggingFolder(folder, container.attrs["Config"]["Hostname"])


def use_in(stats: Mapping[str, Any]) -> ProgramUse | None:
    """What a container uses, by the daemon's answer; None if it does not run, or the
    daemon cannot count. Memory is counted as `docker stats` does.
    """
    memory: Mapping[str, Any] = stats.get("memory_stats") or {}
    used = memory.get("usage")
    cpu_ns = (stats.get("cpu_stats") or {}).get("cpu_usage", {}).get("total_usage")
    if not used or cpu_ns is None:
        return None
    kept: Mapping[str, int] = memory.get("stats") or {}
    # In control groups of version 1, the names begin with "total_".
    cached = kept.get("total_inactive_file", kept.get("inactive_file", 0))
    return ProgramUse(cpu_ns / 1e9, max(used - cached, 0) / (1 << 20))


def forward_by_hand(host: str | None, container: str, port: int) -> str:
    """What a person types to reach a port of a container."""
    docker = f"docker -H {host}" if host else "docker"
    address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return (
        f"`{docker} inspect -f '{address}' {container}` prints the address of its"
        f" container: connect to port {port} there."
    )


def reference_of(image: str) -> tuple[str, str]:
    """The image's repository and tag. Without a tag Docker would pull all tags."""
    name, _, digest = image.partition("@")
    if digest:
        return name, digest
    head, _, last = image.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{head}/{repository}" if head else repository, tag or "latest"
