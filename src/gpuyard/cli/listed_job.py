"""The part of a job resource that `gpuyard jobs` shows, without Pydantic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuyard.domain.units import shortened


@dataclass(frozen=True, slots=True)
class ListedCost:
    """What the job has cost so far."""

    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class ListedAttempt:
    """When an attempt ran, in UTC seconds, and for how many seconds."""

    started_at: float | None
    ended_at: float | None
    ran_s: float | None


@dataclass(frozen=True, slots=True)
class ListedProgress:
    """How far the job is."""

    step: int | None
    total: int | None
    epoch: float | None
    epochs: int | None
    eta_s: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One row; the names are those of the job resource."""

    id: str
    name: str
    state: str
    priority: int
    created_at: float
    reason: str | None
    held: bool
    user: str | None
    cost: ListedCost | None
    progress: ListedProgress | None
    attempts: Sequence[ListedAttempt]
    array_id: str | None = None
    array_index: int | None = None

    @classmethod
    def of_array(cls, document: Mapping[str, Any]) -> "ListedJob":
        """Read one array resource: it is listed as one line."""
        span = ListedAttempt(document["started_at"], document["ended_at"], None)
        counts: Mapping[str, int] = document["counts"]
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        return cls(
            id=document["id"],
            name=f"{document['name']} [{shortened(document['tasks'])}]",
            state=document["state"],
            priority=document["priority"],
            created_at=document["created_at"],
            reason=words,
            held=False,
            user=document.get("user"),
            cost=None,
            progress=None,
            attempts=[span],
        )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "ListedJob":
        """Read one job resource, or one array resource."""
        if document["kind"] == "array":
            return cls.of_array(document)
        cost = document["cost"]
        progress = document["progress"]
        return cls(
            id=document["id"],
            name=document["name"],
            state=document["state"],
            priority=document["priority"],
            created_at=document["created_at"],
            reason=document["reason"],
            held=document.get("held", False),
            user=document.get("user"),
            cost=ListedCost(Decimal(cost["amount"]), cost["currency"]),
            progress=ListedProgress(
                **{name: progress[name] for name in ListedProgress.__slots__}
            ),
            attempts=[
                ListedAttempt(row["started_at"], row["ended_at"], row.get("ran_s"))
                for row in document["attempts"]
            ],
            array_id=document.get("array_id"),
            array_index=document.get("array_index"),
        )
