"""The methods of `Client` for schedules."""

from collections.abc import Sequence
from typing import Any, TypeVar

from gpuyard.client import schedule_calls
from gpuyard.client.bodies import Work, body_of
from gpuyard.client.calls import Call
from gpuyard.domain.jobs import Job
from gpuyard.domain.schedules import Schedule

T = TypeVar("T")


class ScheduleMethods:
    """Jobs that are submitted again and again."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def carrying(self, bodies: Sequence[Any]) -> list[Any]:
        """`bodies`, each job with the environment that it carries."""
        raise NotImplementedError

    def add_schedule(
        self,
        work: Work,
        cron: str,
        *,
        timezone: str | None = None,
        overlap: str = "skip",
        starting_deadline_s: float | str = "1h",
        deadline_s: float | str | None = None,
        **fields: Any,
    ) -> Schedule:
        """Submit `work` (as for `run`) at each time of a cron expression, such as
        `"0 3 * * *"`; `timezone` is that of this machine unless you name one.

        `overlap` says what happens when its last job has not ended: `skip`, `queue` or
        `cancel-previous`. A time that passed without a server is made up for within
        `starting_deadline_s`. Each job has its deadline `deadline_s` after its time.
        """
        (body,) = self.carrying([body_of(work, fields)])
        options: dict[str, Any] = {
            "overlap": overlap,
            "starting_deadline_s": starting_deadline_s,
            "deadline_s": deadline_s,
            "timezone": timezone,
        }
        return self.call(schedule_calls.create(body, cron, options))

    def schedules(self) -> list[Schedule]:
        """Every schedule, the oldest first."""
        return self.call(schedule_calls.listing())

    def schedule(self, reference: str) -> Schedule:
        """A schedule by id, by the ending of its id, or the newest of a name;
        NotFoundError.
        """
        return self.call(schedule_calls.show(reference))

    def change_schedule(self, reference: str, **changes: Any) -> Schedule:
        """Give it another `cron`, `timezone`, `overlap`, `starting_deadline_s`,
        `deadline_s` (None: none any more) or
        `state` (`active`, `paused`).
        """
        return self.call(schedule_calls.change(reference, changes))

    def delete_schedule(self, reference: str) -> Schedule:
        """Delete it; what it was. Its jobs go on."""
        return self.call(schedule_calls.delete(reference))

    def run_schedule(self, reference: str) -> Job:
        """Submit its job now; RefusedError if its last one has not ended and it skips
        such times.
        """
        return self.call(schedule_calls.run_now(reference))
