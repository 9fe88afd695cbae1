"""Speaks to SkyPilot. It runs in the Python in whose environment SkyPilot is
installed, and needs nothing of gpuyard.

Each line of its input is a request, and each line of its output answers one:

    {"id": 1, "call": "clusters", "arguments": {}}
    {"id": 1, "value": {...}}
    {"id": 1, "fault": {"kind": "ResourcesUnavailableError", "message": "..."}}

Requests are served at once, in threads, and answered in any order. It ends with its
input. Its argument is a folder of its own, for the files of launches.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_THREADS = 16
# For so long a launch that has failed is told of.
_REMEMBERED_S = 600.0
_MESSAGE_CHARACTERS = 600
# SkyPilot reads the files of a launch that an earlier process has asked for, and is
# done with them after this time. They have the secrets by which machines join.
_READ_S = 3600.0


def fault_of(error: BaseException) -> dict[str, str]:
    """An error, as an answer has it."""
    message = " ".join(str(error).split())
    return {"kind": type(error).__name__, "message": message[:_MESSAGE_CHARACTERS]}


class Bridge:
    """What gpuyard asks of SkyPilot, by the names of the methods."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.sky: Any = importlib.import_module("sky")
        self._lock = threading.Lock()
        # By name of the cluster: requests that go on, and when (monotonic seconds) and
        # how others have failed.
        self._launching: dict[str, Any] = {}
        self._failed: dict[str, tuple[float, dict[str, str]]] = {}

    def clouds(self) -> list[str]:
        """The clouds that are enabled."""
        # SkyPilot does not export it.
        sdk: Any = importlib.import_module("sky.client.sdk")
        found = self.sky.get(sdk.enabled_clouds())
        return [str(cloud).lower() for cloud in found]

    def machine_types(self, clouds: list[str]) -> list[dict[str, Any]]:
        """What SkyPilot's catalogue has with GPUs in these clouds, in each region."""
        request = self.sky.list_accelerators(
            gpus_only=True, clouds=clouds, all_regions=True
        )
        found = self.sky.get(request)
        return [row._asdict() for rows in found.values() for row in rows]

    def launch(
        self,
        name: str,
        command: str,
        files: dict[str, str],
        idle_minutes: int,
        resources: dict[str, Any],
    ) -> None:
        """Ask for a cluster of one machine with these files, by their paths there. What
        becomes of it, `clusters` tells.
        """
        with self._lock:
            if name in self._launching:
                return
            self._failed.pop(name, None)
            # Its request comes when SkyPilot has taken it.
            self._launching[name] = None
        folder = ""
        try:
            folder = tempfile.mkdtemp(prefix="launch-", dir=self._folder)
            task = self.sky.Task(name=name, run=command)
            task.set_resources(self.sky.Resources(**resources))
            task.set_file_mounts(_written(folder, files))
            request = self.sky.launch(
                task,
                cluster_name=name,
                idle_minutes_to_autostop=idle_minutes,
                down=True,
            )
        except BaseException:
            with self._lock:
                del self._launching[name]
            shutil.rmtree(folder, ignore_errors=True)
            raise
        with self._lock:
            self._launching[name] = request
        waiting = threading.Thread(
            target=self._wait, args=(name, request, folder), daemon=True
        )
        waiting.start()

    def _wait(self, name: str, request: Any, folder: str) -> None:
        """The end of a launch: it succeeds or fails minutes after it was asked for.
        Until then SkyPilot may read the files of the launch.
        """
        fault: dict[str, str] | None = None
        try:
            self.sky.get(request)
        except Exception as error:  # noqa: BLE001  (any of SkyPilot's)
            fault = fault_of(error)
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            del self._launching[name]
            if fault:
                self._failed[name] = time.monotonic(), fault

    def clusters(self, prefix: str) -> dict[str, Any]:
        """All clusters whose name begins so, launches that go on, and those that have
        failed. What has ended by itself is asked of the clouds.
        """
        since = time.monotonic() - _REMEMBERED_S
        with self._lock:
            launching = [name for name in self._launching if name.startswith(prefix)]
            failed = {
                name: fault
                for name, (at, fault) in self._failed.items()
                if name.startswith(prefix) and at > since
            }
        refresh = self.sky.StatusRefreshMode.AUTO
        records = self.sky.get(self.sky.status(refresh=refresh))
        found = [_cluster(record) for record in records]
        return {
            "clusters": [one for one in found if one["name"].startswith(prefix)],
            "launching": launching,
            "failed": failed,
        }

    def down(self, name: str) -> None:
        """End a cluster and delete its disks; one that is gone is no error."""
        with self._lock:
            request = self._launching.get(name)
        if request is not None:
            self.sky.get(self.sky.api_cancel([request]))
        try:
            self.sky.get(self.sky.down(name))
        except Exception as error:
            if type(error).__name__ != "ClusterDoesNotExist":
                raise


def _written(folder: str, files: dict[str, str]) -> dict[str, str]:
    """Write these files, which only this user can read; where each is, by its path on
    the machine.
    """
    found: dict[str, str] = {}
    for number, (target, text) in enumerate(files.items()):
        path = os.path.join(folder, str(number))  # noqa: PTH118
        with open(path, "w", opener=_private) as file:
            file.write(text)
        found[target] = path
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _cluster(record: Any) -> dict[str, Any]:
    """A record of SkyPilot, which older versions give as a dictionary."""
    handle = record["handle"]
    resources = getattr(handle, "launched_resources", None)
    return {
        "name": record["name"],
        "status": record["status"].value,
        "launched_at": record["launched_at"],
        "cloud": str(getattr(resources, "cloud", "") or "").lower(),
        "region": getattr(resources, "region", None) or "",
        "type": getattr(resources, "instance_type", None) or "",
        "spot": bool(getattr(resources, "use_spot", False)),
        "why": record.get("init_status_reason") or "",
    }


def tidy(folder: str) -> None:
    """Make the folder for the files of launches. What processes have left there that
    were killed goes.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
    with os.scandir(folder) as left:
        for entry in left:
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - _READ_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # SkyPilot writes to its output what is for people.
    os.dup2(2, 1)
    folder = sys.argv[1]
    tidy(folder)
    bridge = Bridge(folder)
    writing = threading.Lock()

    def serve(line: str) -> None:
        request = json.loads(line)
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            call = getattr(bridge, request["call"])
            answer["value"] = call(**request["arguments"])
        except Exception as error:  # noqa: BLE001  (any of SkyPilot's)
            answer["fault"] = fault_of(error)
        with writing:
            answers.write(json.dumps(answer, default=str) + "\n")
            answers.flush()

    with ThreadPoolExecutor(_THREADS) as pool:
        for line in sys.stdin:
            pool.submit(serve, line)


if __name__ == "__main__":
    main()
