"""Attempts that have ended, as advice on costs sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from gpuyard.domain import wire
from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.run_time import run_time_s

_MB_PER_GB = 1000.0


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended. None in a measurement: nobody measured it.

    `program` is the name of its job. `gpus` and `cpus` are those of all its nodes, of
    which `offer` placed it, if an external queue did. `gpu_used` is how busy its GPUs
    were, from 0 to 1; `cores_used` how many cores it used on average; `memory_gb` and
    `gpu_memory_gb` the most that it used, of a GPU on one of them.
    """

    job_id: str
    user: str
    program: str
    tier: str | None
    currency: str
    basis: str
    offer: str
    cost: Decimal
    ran_s: float
    nodes: int
    gpus: int
    cpus: float
    has_completed: bool
    has_saved: bool
    asked_for_spot: bool
    gpu_used: float | None
    cores_used: float | None
    memory_gb: float | None
    gpu_memory_gb: float | None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "EndedAttempt":
        """Of a row of the ledger (`CostUseQueries.ended_uses`)."""
        ran_s = run_time_s(row["started_at"], row["ended_at"], row["ran_s"])
        usage = _json(row["usage"], {})
        placements = _json(row["placements"], [])
        cpu_s = usage.get("cpu_s")
        return cls(
            job_id=row["job_id"],
            user=row["owner"] or INSTANCE_OWNER,
            program=row["name"],
            tier=row["tier"],
            currency=row["currency"],
            basis=row["basis"] or "",
            offer=next((each.get("offer", "") for each in placements), ""),
            cost=Decimal(row["cost"]),
            ran_s=ran_s,
            nodes=max(len(placements), 1),
            gpus=row["gpus"],
            cpus=row["cpus"],
            has_completed=row["reason"] is None,
            has_saved=bool(row["has_saved"]),
            asked_for_spot=bool(_json(row["shape"], {}).get("spot")),
            gpu_used=row["gpu_used"],
            cores_used=None if cpu_s is None or not ran_s else cpu_s / ran_s,
            memory_gb=_peak_gb(usage),
            gpu_memory_gb=_gb(usage.get(wire.GPU_MEMORY_MB)),
        )


def _peak_gb(usage: Mapping[str, float]) -> float | None:
    """The most memory: agents give megabytes, Slurm gives bytes."""
    of_slurm = usage.get("max_rss_bytes")
    if of_slurm is not None:
        return of_slurm / 1e9
    return _gb(usage.get("peak_mb"))


def _gb(megabytes: float | None) -> float | None:
    return None if megabytes is None else megabytes / _MB_PER_GB


def _json(text: str | None, default: Any) -> Any:
    return msgspec.json.decode(text) or default if text else default
