"""Simulated GPUs, for a machine that has none: jobs on them are real processes."""

from dataclasses import dataclass

from gpuyard.devices.discovery import Discovery
from gpuyard.devices.gpu import GpuReading


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """`count` GPUs of `memory_gb` each."""

    count: int
    memory_gb: float

    @classmethod
    def parse(cls, text: str) -> "SimulatedGpus":
        """`5x24` is five GPUs of 24 GB; the settings have checked the text."""
        count, _, memory_gb = text.partition("x")
        return cls(int(count), float(memory_gb))

    def discover(self) -> Discovery:
        """The result of a discovery: all of them, idle and healthy."""
        memory_mb = int(self.memory_gb * 1024)
        gpus = tuple(
            GpuReading(
                f"GPU-simulated-{index}",
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
