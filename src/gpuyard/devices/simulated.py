"""Simulated GPUs, for a machine that has none: jobs on them are real processes."""

from dataclasses import dataclass

from gpuyard.devices.discovery import Discovery
from gpuyard.devices.gpu import GpuReading


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """`count` GPUs of `memory_gb` each. `machine` tells them from those of others."""

    count: int
    memory_gb: float
    machine: str = ""

    @classmethod
    def parse(cls, text: str, machine: str = "") -> "SimulatedGpus":
        """`5x24` is five GPUs of 24 GB; the settings have checked the text."""
        count, _, memory_gb = text.partition("x")
        return cls(int(count), float(memory_gb), machine)

    def discover(self) -> Discovery:
        """The result of a discovery: all of them, idle and healthy."""
        memory_mb = int(self.memory_gb * 1024)
        prefix = f"GPU-simulated-{self.machine}-" if self.machine else "GPU-simulated-"
        gpus = tuple(
            GpuReading(
                f"{prefix}{index}",
                index,
                "Simulated GPU",
                memory_mb,
                memory_mb,
                "8.6",
                "",
                None,
                None,
                None,
                (),
                mig=False,
            )
            for index in range(self.count)
        )
        return Discovery(gpus, (), "simulated", None)
