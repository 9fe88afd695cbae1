"""A container: what the daemon is told of it, and what is read back."""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.providers.docker.config import DockerConfig
from gpuyard.storage.blobs import Blobs, BucketError

ATTEMPT, HOME, LIMITS = "gpuyard.attempt", "gpuyard.home", "gpuyard.limits"
"""The labels of a container: whose it is, and what has to outlive gpuyard."""
# One output, in order, whatever the program writes where; and its standard input from a file.
_SHELL = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
_SHELL_STDIN = ("/bin/sh", "-c", 'exec "$@" 2>&1 </gpuyard/stdin', "sh")


class Blueprint:
    """Makes containers' descriptions. Each attempt has a folder of its own below `folder`, on this host."""

    def __init__(self, settings: DockerConfig, folder: Path, blobs: Blobs) -> None:
        self._settings, self._folder, self._blobs = settings, folder, blobs

    def values(self, attempt_id: str, config: JobConfig) -> dict[str, Any]:
        """What the daemon is told, in the terms of docker-py."""
        need, options = config.gpu_spec, config.provider_options
        uuids: list[str] = list(options.get("gpu_uuids") or ()) if need.gpu_count else []
        private = self._folder / attempt_id
        private.mkdir(parents=True, exist_ok=True, mode=0o700)
        workdir = options.get("workdir") or "/gpuyard/work"
        mounts, resume_from = self._mounts(private, config)
        extra = [word.replace("{path}", resume_from) for word in config.checkpoint.resume_args] if resume_from else []
        limits = {"timeout_s": config.timeout_minutes * 60 if config.timeout_minutes else None,
                  "grace_s": config.grace_s, "signal": config.checkpoint.signal,
                  "every_s": config.checkpoint.every_s, "path": config.checkpoint.path}  # fmt: skip
        return {
            "entrypoint": list(_SHELL if config.args_via_stdin is None else _SHELL_STDIN),
            "command": [*config.command, *extra],
            "environment": self._environment(config, uuids, resume_from),
            "working_dir": workdir,
            "mounts": mounts,
            "labels": {ATTEMPT: attempt_id, HOME: self._settings.home, LIMITS: json.dumps(limits)},
            "device_requests": [DeviceRequest(device_ids=uuids, capabilities=[["gpu"]])] if uuids else None,
            "mem_limit": int(need.ram_gb * (1 << 30)) if need.ram_gb else None,
            "nano_cpus": int(need.vcpus * 1e9) if need.vcpus else None,
            "pids_limit": self._settings.max_processes,
            "read_only": not self._settings.writable_root,
            "tmpfs": {"/tmp": ""},
            "security_opt": ["no-new-privileges"],
            "user": f"{os.getuid()}:{os.getgid()}",
            "network_mode": self._settings.network,
            "log_config": LogConfig(type="json-file", config={"max-size": "1000g"}),
            "init": True,  # whoever is process 1 himself ignores TERM, and cannot even be killed by his own hand
        }

    def _mounts(self, private: Path, config: JobConfig) -> tuple[list[Mount], str]:
        """The folders it sees, and where its checkpoint to resume from lies."""
        options = config.provider_options
        mounts = [Mount(inside, outside, type="bind") for inside, outside in config.volumes.items()]
        if options.get("workdir"):
            mounts.append(Mount(options["workdir"], options["workdir"], type="bind"))
        else:
            (private / "work").mkdir(exist_ok=True)
            mounts.append(Mount("/gpuyard/work", str(private / "work"), type="bind"))
        if workspace := self._workspace(config):
            mounts.append(Mount("/workspace", workspace, type="bind"))
        if config.args_via_stdin is not None:
            (private / "stdin").write_bytes(config.args_via_stdin)
            mounts.append(Mount("/gpuyard/stdin", str(private / "stdin"), type="bind", read_only=True))
        if not options.get("resume_sha256"):
            return mounts, ""
        name = str(options.get("resume_name") or "checkpoint")
        directory = bool(options.get("resume_directory"))
        try:
            self._blobs.restore(options["resume_sha256"], private / "resume" / name, directory=directory)
        except BucketError:
            raise
        except OSError as error:
            raise ProviderError(f"The checkpoint cannot be read: {error}.", "docker", "BAD_RESUME") from None
        mounts.append(Mount("/gpuyard/resume", str(private / "resume"), type="bind"))
        return mounts, f"/gpuyard/resume/{name}"

    def _workspace(self, config: JobConfig) -> str | None:
        """The folder of this host that the container sees as `/workspace`; None for none."""
        if not (here := config.provider_options.get("workspace_here")):
            return self._settings.workspace
        folder = Path(str(here))
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _environment(self, config: JobConfig, uuids: Sequence[str], resume_from: str) -> dict[str, str]:
        """The host's PATH and HOME mean nothing in an image."""
        given = {name: value for name, value in config.environment.items() if name != "PATH"}
        ours = {
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
            "NVIDIA_VISIBLE_DEVICES": ",".join(uuids) or "void",
            "GPUYARD_JOB_ID": str(config.provider_options.get("job_id", "")),
            "GPUYARD_ATTEMPT_ID": config.attempt_id or "",
            "GPUYARD_ATTEMPT": str(config.token),
            **({"GPUYARD_RESUME_FROM": resume_from} if resume_from else {}),
            **({"GPUYARD_WORKSPACE": "/workspace"} if config.provider_options.get("workspace_here") else {}),
        }
        return {"PYTHONUNBUFFERED": "1", "HOME": "/tmp", **given, **ours}


def state_of(container: Container) -> dict[str, Any]:
    """What the daemon said of it last."""
    found: dict[str, Any] = container.attrs["State"]
    return found


def is_live(container: Container) -> bool:
    """True while its program runs."""
    return container.status in ("running", "paused", "restarting")


def limits_of(container: Container) -> dict[str, Any]:
    """Its timeout, grace and checkpoint signal."""
    found: dict[str, Any] = json.loads(container.labels[LIMITS])
    return found


def instant(text: str) -> float | None:
    """Docker's times have nanoseconds, and the year 1 stands for never."""
    if text.startswith("0001"):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def reference_of(image: str) -> tuple[str, str]:
    """Repository and tag; without a tag Docker would pull all there are."""
    name, _, digest = image.partition("@")
    if digest:
        return name, digest
    head, _, last = image.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{head}/{repository}" if head else repository, tag or "latest"
