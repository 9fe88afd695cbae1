"""Reservations: GPUs or nodes that a project or a user has for a time. Times are UTC
seconds.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpuyard.domain.cron import time_zone
from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel


def _timezone(value: str) -> str:
    return time_zone(value).key


def _gpu_class(value: str) -> str:
    resolve_gpu_class(value)
    return value


class ReservationSpec(StrictModel):
    """GPUs for a `project` or a `user`, from `begins` to `ends`: local times in
    `timezone`, such as `2026-12-01 09:00`, or with an offset; `now` is now.

    `gpus` of `gpu_class` (unset: any) on `node` (unset: any). A node without `gpus` is
    all of that node.
    """

    project: Name | None = None
    user: Name | None = None
    gpus: int | None = Field(default=None, ge=1, le=100_000)
    gpu_class: Annotated[Name, AfterValidator(_gpu_class)] | None = None
    node: Name | None = None
    begins: Name
    ends: Name
    timezone: Annotated[Name, AfterValidator(_timezone)] = "UTC"

    @model_validator(mode="after")
    def _is_of_one(self) -> Self:
        if self.project is None and self.user is None:
            raise ValueError("@project@is missing, and so is user; give one of them")
        if self.project is not None and self.user is not None:
            raise ValueError("@project@does not go with user; give one of them")
        if self.gpus is None and self.node is None:
            raise ValueError("@gpus@says what is reserved; give gpus, or node for all")
        if self.gpus is None and self.gpu_class is not None:
            raise ValueError("@gpus@says how many of that class; give it, such as 4")
        return self


class ReservationState(StrEnum):
    """How far a reservation is."""

    COMING = "coming"
    CURRENT = "current"
    OVER = "over"


class ReservedShare(BaseModel):
    """What a reservation has on one node: its GPUs by UUID."""

    node: str
    gpu_uuids: list[str]


class Reservation(BaseModel):
    """A reservation as people see it. `shares` are the GPUs that it has now; until it
    begins, they may still change. `problem`: what it lacks, for people; else empty.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    state: ReservationState
    project: str | None = None
    user: str | None = None
    gpus: int | None = None
    gpu_class: str | None = None
    node: str | None = None
    begins_at: float
    ends_at: float
    timezone: str
    created_at: float
    created_by: str | None = None
    shares: list[ReservedShare] = Field(default_factory=list[ReservedShare])
    problem: str = ""
