"""What nodes tell of their disks: warns before one is full, and names the job that
takes most of it.
"""

from collections.abc import Mapping
from typing import Any

from gpuyard.config.paths import Home
from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn
from gpuyard.domain import wire
from gpuyard.domain.errors import DiskFullError
from gpuyard.domain.events import Event, EventKind
from gpuyard.domain.units import format_duration, format_gb
from gpuyard.domain.wire_types import DiskUser
from gpuyard.scheduler.attempts import LiveAttempt

# A disk that has become so much emptier may fill again, and is told again.
_EMPTIER_PERCENT = 5.0
_HOUR_S = 3600.0


class DiskAlarms:
    """The disks of the nodes, as last told.

    A job is named once while a disk stays full.
    """

    def __init__(self, core: Core, home: Home) -> None:
        self._core = core
        self._home = home
        self._disks: dict[str, wire.DiskStatus] = {}
        # The attempts that were named, by node; "" stands for none at all.
        self._named: dict[str, set[str]] = {}

    def seen(self, node_id: str, disk: wire.DiskStatus) -> None:
        """A node has looked at its disk."""
        self._disks[node_id] = disk
        limit = self._core.settings.disk.warn_percent
        percent = used_percent(disk)
        if percent < limit - _EMPTIER_PERCENT:
            self._named.pop(node_id, None)
        if percent < limit:
            return
        named = self._named.setdefault(node_id, set())
        attempt = self._largest(disk)
        attempt_id = attempt.id if attempt else ""
        if attempt_id in named:
            return
        named.add(attempt_id)
        self._warn(node_id, disk, attempt)

    def _warn(
        self, node_id: str, disk: wire.DiskStatus, attempt: LiveAttempt | None
    ) -> None:
        core = self._core
        kind = EventKind.DISK_FILLING
        info: dict[str, Any] = {"node": node_id, **self._figures(disk)}
        if attempt is None:
            info["problem"] = _state(disk)
            core.emit([Event(kind, core.clock(), (), None, info)])
            return
        info["problem"] = f"{_state(disk)}; it takes {_took(disk, attempt.id)}"
        warn(core, attempt, info["problem"], kind, info)

    def forget(self, node_id: str) -> None:
        """The node has left: what it told is no longer known."""
        self._disks.pop(node_id, None)

    def of(self, node_id: str) -> dict[str, Any] | None:
        """What is known of the disk of this node, for people and programs; `problem` is
        None while there is enough room.
        """
        disk = self._disks.get(node_id)
        if disk is None:
            return None
        is_low = used_percent(disk) >= self._core.settings.disk.warn_percent
        return {
            **self._figures(disk),
            "problem": self._problem(disk) if is_low else None,
        }

    def refuse_when_full(self) -> None:
        """DiskFullError while the reserve of the home is spent: what it gave is for
        jobs that there are already.
        """
        reserve = self._core.ledger.reserve
        if reserve is None or not reserve.is_spent:
            return
        room = format_gb(reserve.room_to_fill / 2**30)
        raise self.full_disk(
            f"The disk of {self._home.root} is full. No new jobs are taken until {room}"
            " are free; what was acknowledged is safe, and jobs can be cancelled."
        )

    def full_disk(self, fault: str) -> DiskFullError:
        """The error for this fault; it names the job that takes most of the home's
        disk, and what ends it.
        """
        remedy = "Free some space; `gpuyard doctor` shows what gpuyard keeps where."
        disk = self._own_disk()
        attempt = self._largest(disk) if disk else None
        unnamed = DiskFullError(fault, remedy)
        if disk is None or attempt is None:
            return unnamed
        most = f"Most is taken by {self._subject(attempt)}: {_took(disk, attempt.id)}."
        ending = f"`gpuyard cancel {attempt.job_id}` ends that job."
        error = DiskFullError(f"{fault} {most}", f"{ending} {remedy}")
        error.job_id = attempt.job_id
        error.unnamed = unnamed
        return error

    def _own_disk(self) -> wire.DiskStatus | None:
        """The disk of this server's home, as its own node has told."""
        try:
            own_node = (self._home.node / "id").read_text().strip()
        except OSError:
            return None
        disk = self._disks.get(own_node)
        return disk if disk and disk.folder == str(self._home.root) else None

    def _largest(self, disk: wire.DiskStatus) -> LiveAttempt | None:
        """The attempt that takes most of the disk, if any takes something."""
        attempts = self._core.view.attempts
        for user in disk.users:
            if user.used and user.attempt_id in attempts:
                return attempts[user.attempt_id]
        return None

    def _subject(self, attempt: LiveAttempt) -> str:
        job = self._core.queries.job(attempt.job_id)
        name = job["name"] if job else ""
        return f"job {name} ({attempt.job_id})"

    def _figures(self, disk: wire.DiskStatus) -> dict[str, Any]:
        return {
            "folder": disk.folder,
            "total_bytes": disk.total,
            "free_bytes": disk.free,
            "used_percent": round(used_percent(disk), 1),
            "jobs": [row for user in disk.users if (row := self._row(user))],
        }

    def _problem(self, disk: wire.DiskStatus) -> str:
        """How full the disk is, and who takes most of it."""
        attempt = self._largest(disk)
        if attempt is None:
            return _state(disk)
        subject = self._subject(attempt)
        return f"{_state(disk)}; {subject} takes most: {_took(disk, attempt.id)}"

    def _row(self, user: DiskUser) -> Mapping[str, Any] | None:
        attempt = self._core.view.attempts.get(user.attempt_id)
        if attempt is None:
            return None
        return {
            "job_id": attempt.job_id,
            "used_bytes": user.used,
            "log_bytes": user.log,
            "bytes_per_s": user.growth,
        }


def used_percent(disk: wire.DiskStatus) -> float:
    """How full the disk is, as `df` says it."""
    return 100.0 * (1 - disk.free / disk.total) if disk.total else 0.0


def _state(disk: wire.DiskStatus) -> str:
    folder = "".join(c for c in disk.folder if c.isprintable())  # an agent may lie
    free = format_gb(disk.free / 2**30)
    return f"the disk of {folder} is {used_percent(disk):.0f}% full, {free} free"


def _took(disk: wire.DiskStatus, attempt_id: str) -> str:
    """What the attempt takes, in words."""
    user = next(user for user in disk.users if user.attempt_id == attempt_id)
    words = format_gb(user.used / 2**30)
    if user.log:
        words += f", of which its log has {format_gb(user.log / 2**30)}"
    per_hour = user.growth * _HOUR_S
    if per_hour >= 2**20:
        words += f", and {format_gb(per_hour / 2**30)} more each hour"
        if disk.free:
            left = format_duration(disk.free / user.growth)
            words += f", so that the disk is full in {left}"
    return words
