"""What a program in an external queue uses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """CPU seconds since the start of the program, and MiB of memory now, without what
    the kernel only caches for it.
    """

    cpu_s: float
    rss_mb: float
