"""What the handles of jobs and arrays have in common, in both SDKs."""

from typing import Generic, TypeVar

from gpuyard.domain.arrays import Array
from gpuyard.domain.jobs import Job

Resource = TypeVar("Resource", Job, Array)


class Handle(Generic[Resource]):
    """A job or an array that was submitted: `info` is its resource as last read."""

    def __init__(self, info: Resource) -> None:
        self.info = info

    def __repr__(self) -> str:
        kind = "array" if isinstance(self.info, Array) else "job"
        return f"<{kind} {self.id} {self.info.name!r} {self.state}>"

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def state(self) -> str:
        """Its state as last read."""
        return self.info.state.value
