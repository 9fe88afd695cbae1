"""The report of how an attempt ended: why, how long it ran and what it used."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType

from msgspec.structs import replace

from gpuyard.config.boot_clock import boot_clock_s
from gpuyard.domain import wire
from gpuyard.domain.reasons import Reason
from gpuyard.domain.units import format_gb
from gpuyard.node.clocks import start_of
from gpuyard.node.journal import JournalEntry
from gpuyard.node.launcher import Exit, Process

_NO_USAGE: Mapping[str, float] = MappingProxyType({})


class EndReport:
    """Makes the report of one attempt. `default_memory_gb`: see `AgentContext`."""

    def __init__(self, record: JournalEntry, default_memory_gb: float | None) -> None:
        self._record = record
        self._default_memory_gb = default_memory_gb
        self._remarks: list[str] = []

    def remark(self, text: str) -> None:
        """Add a remark to the message, unless it ends well."""
        if text not in self._remarks:
            self._remarks.append(text)

    def make(
        self,
        found: Exit,
        process: Process | None,
        *,
        stopped: str,
        was_watched: bool,
        gpu_usage: Mapping[str, float] = _NO_USAGE,
        reason: str = "",
        message: str = "",
    ) -> wire.Ended:
        """The report of an attempt whose `process` ended as `found`; None if it was not
        launched. `stopped`: why gpuyard stopped it, if it did. `gpu_usage`: what
        it used of its GPUs, as far as that is known.
        """
        record = self._record
        if not reason and found.lost:
            reason = Reason.EXIT_STATUS_LOST
            message = "agent and keeper were both killed, so nobody saw how it ended"
        if found.out_of_memory:
            reason = Reason.OUT_OF_MEMORY
            message = self._out_of_memory(process)
        if stopped or found.code or found.signal:
            message = "; ".join(text for text in (message, *self._remarks) if text)
        usage = _usage(process, was_watched)
        if usage:
            usage |= gpu_usage
        return wire.Ended(
            record.start.attempt_id,
            time.time(),
            record.started_at,
            found.code,
            found.signal,
            reason,
            stopped,
            message,
            {name: round(value, 3) for name, value in usage.items()},
            dict(record.limits),
            ran_s=None if found.lost else self.ran_s(found.ended_boot_s),
            facts=dict(record.facts),
        )

    def explained(self, ended: wire.Ended, fault: str | None) -> wire.Ended:
        """The report with the `fault` that the output names as its reason, if it failed
        and has none.
        """
        failed = ended.exit_code or ended.signal
        if not fault or not failed or ended.reason or ended.stopped:
            return ended
        message = "its output says so"
        if fault == Reason.OUT_OF_MEMORY and "memory" in self._record.limits:
            message += f", under {self.memory_limit()}"
        return replace(ended, reason=fault, message=message)

    def ran_s(self, ended_boot_s: float | None) -> float | None:
        """For how many seconds it ran, until a time of the boot clock or until now;
        None if it was not launched.
        """
        record = self._record
        if record.pid is None:
            return None
        began_s = record.boot_s
        if began_s is None:  # an agent of an earlier version started it
            began_s = start_of(record.start_ticks)
        until_s = boot_clock_s() if ended_boot_s is None else ended_boot_s
        return max(until_s - began_s, 0.0)

    def _out_of_memory(self, process: Process | None) -> str:
        if process and not process.settled:
            return (
                "the kernel killed it in its first moments, because no memory was left"
                " on the node"
            )
        return f"the kernel killed it at {self.memory_limit()}"

    def memory_limit(self) -> str:
        """The attempt's memory limit in words, and how to set another."""
        own_gb = self._record.start.memory_gb
        if own_gb:
            return f"its memory limit of {format_gb(own_gb)}; --memory sets another"
        if self._default_memory_gb:
            return (
                f"its memory limit of {format_gb(self._default_memory_gb)}, which is"
                " the memory of the node less [node] reserve_memory_gb; --memory sets"
                " another"
            )
        return "its memory limit"


def _usage(process: Process | None, was_watched: bool) -> dict[str, float]:
    """What the attempt used in total. If it was too short to be watched, only the CPU
    time of its first process is known.
    """
    if process is None:
        return {}
    if not was_watched:
        return {"cpu_s": process.leader_cpu_s()}
    return asdict(process.usage())
