"""A simulated machine: what survives its agent (processes, journal, logs, exit
records), and what sees the truth.

It is the independent witness: it knows which process ran when, whatever server and
agents believe.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuyard.domain import wire


@dataclass
class Process:
    """A job's program on a host; `started_at` and `ended_at` in the world's true
    seconds.

    `agent` and `keeper` are the numbers of those that were there when it began.
    """

    attempt_id: str
    job_id: str
    number: int
    gpus: frozenset[str]
    cpus: float
    started_at: float
    stubborn: bool
    agent: int = 0
    keeper: int = 0
    ended_at: float | None = None
    code: int | None = None
    signal: int | None = None
    exit_lost: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    end: Any = None

    @property
    def alive(self) -> bool:
        return self.ended_at is None


@dataclass
class Entry:
    """The agent's journal of one attempt; `agents` counts the starts of keepers, as the
    keeper's pid would tell.
    """

    start: wire.StartAttempt
    boot: int
    keeper: int
    noted: bool = False
    started_at: float = 0.0
    monotonic: float = 0.0
    stopping: str = ""
    ended: wire.Ended | None = None
    checkpoints: list[wire.CheckpointSaved] = field(
        default_factory=list[wire.CheckpointSaved]
    )


class Host:
    """One machine. `clock` is its wall clock, `monotonic` its monotonic one."""

    def __init__(self, number: int, cpus: int, gpus: int) -> None:
        self.node_id = f"node_{number:032x}"
        self.cpus = cpus
        self.gpus = tuple(f"GPU-{number}-{n}" for n in range(gpus))
        self.sick: set[str] = set()
        self.boot = 1
        self.keeper = 1
        self.journal: dict[str, Entry] = {}
        self.logs: set[str] = set()
        self.heard: float | None = None
        self.processes: dict[str, Process] = {}
        self.history: list[Process] = []

    def gpus_seen(self) -> list[wire.GpuStatus]:
        """What discovery finds."""
        well = {"problem": None, "state": "idle"}
        lost = {"problem": "lost", "state": "offline"}
        return [
            wire.GpuStatus(
                uuid,
                n,
                "Tesla T4",
                15360,
                "7.5",
                **(lost if uuid in self.sick else well),
            )
            for n, uuid in enumerate(self.gpus)
        ]

    def live(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def begin(
        self, process: Process, seconds: float, code: int, later: Callable[..., Any]
    ) -> None:
        """Let a program run for so long and leave with `code`."""
        self.processes[process.attempt_id] = process
        self.history.append(process)
        self.logs.add(process.attempt_id)
        process.end = later(seconds, self.exit, process, code, None)

    def exit(self, process: Process, code: int | None, signal: int | None) -> None:
        if process.alive:
            process.end.cancel()
            process.ended_at = process.end._loop.time()
            process.code = code
            process.signal = signal
            process.over.set()

    def reboot(self) -> None:
        """Every process dies and nobody sees how; the journal on the disk stays."""
        for process in self.live():
            self.exit(process, None, 9)
            process.exit_lost = True
        self.processes.clear()
        self.boot += 1
        self.keeper += 1
        self.heard = None
