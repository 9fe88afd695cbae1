"""Whatever happens to jobs, in whatever order: what must hold of the moves and the
view.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from gpuyard.billing.meter import cost
from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.states import ATTEMPT_MOVES, JOB_MOVES, AttemptState, JobState
from gpuyard.scheduler.jobs import NO_SERVICE
from gpuyard.scheduler.view import View
from tests.support.examples import examples
from tests.support.life import PRICE, Life, view_of

outcomes = st.fixed_dictionaries(
    {},
    optional={
        "exit_code": st.sampled_from([0, 1, 137]),
        "signal": st.just(9),
        "reason": st.sampled_from(
            ["out_of_memory", "command_not_found", "attempt_lost"]
        ),
        "stopped": st.sampled_from(["timed_out", "cancelled", "preempted"]),
        "lost": st.booleans(),
    },
)


def memory(view: View) -> tuple[dict, dict]:
    # Where and for how long ended attempts ran is not in the rows of live jobs; the
    # controller reads it when it starts.
    return {
        key: replace(job, service=NO_SERVICE) for key, job in view.jobs.items()
    }, view.attempts


class Jobs(RuleBasedStateMachine):
    """A few jobs to which everything happens, legal or not."""

    jobs = Bundle("jobs")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.over: dict[str, dict] = {}
        self.paid: dict[str, Decimal] = {}

    def attempt_to(self, legal: bool, act: Callable[[], object]) -> bool:
        """Do it when legal; when not it must be refused and change nothing."""
        if legal:
            act()
            return True
        before = deepcopy(
            (
                self.life.tables,
                memory(self.life.view),
                self.life.jobs,
                self.life.attempts,
            )
        )
        try:
            act()
        except IllegalMoveError:
            assert (
                self.life.tables,
                memory(self.life.view),
                self.life.jobs,
                self.life.attempts,
            ) == before
            return False
        raise AssertionError("an illegal move was made")

    def job_state(self, job_id: str) -> JobState:
        return JobState(self.life.tables[Table.JOBS][job_id]["state"])

    def attempt_state(self, attempt_id: str) -> AttemptState:
        return AttemptState(self.life.tables[Table.ATTEMPTS][attempt_id]["state"])

    @rule(target=jobs, retry_count=st.integers(0, 2))
    def submit(self, retry_count):
        return self.life.submit(retry_count=retry_count)

    @rule(target=attempts, job_id=jobs)
    def intend(self, job_id):
        self.attempt_to(
            JobState.ASSIGNED in JOB_MOVES[self.job_state(job_id)],
            lambda: self.life.intend(job_id),
        )
        return max(self.life.attempts, default=None)

    @rule(attempt_id=attempts)
    def send(self, attempt_id):
        if attempt_id:
            legal = AttemptState.SENT in ATTEMPT_MOVES[self.attempt_state(attempt_id)]
            self.attempt_to(legal, lambda: self.life.send(attempt_id))

    @rule(attempt_id=attempts)
    def start(self, attempt_id):
        if attempt_id:
            state = self.attempt_state(attempt_id)
            # One that is being ended may still say that it had started.
            legal = (
                state is AttemptState.ENDING
                or AttemptState.RUNNING in ATTEMPT_MOVES[state]
            )
            self.attempt_to(legal, lambda: self.life.start(attempt_id))

    @rule(attempt_id=attempts, reason=st.sampled_from(["cancelled", "preempted"]))
    def stop(self, attempt_id, reason):
        if attempt_id:
            legal = AttemptState.ENDING in ATTEMPT_MOVES[self.attempt_state(attempt_id)]
            self.attempt_to(legal, lambda: self.life.stop(attempt_id, reason))

    @rule(attempt_id=attempts, outcome=outcomes, ran_s=st.none() | st.floats(0, 1e5))
    def end(self, attempt_id, outcome, ran_s):
        if not attempt_id:
            return
        if ran_s is not None:
            outcome = {**outcome, "started_at": self.life.now - ran_s}
        at = self.life.now
        known = self.life.attempts[attempt_id].started_at
        if self.attempt_to(
            self.attempt_state(attempt_id).live,
            lambda: self.life.end(attempt_id, **outcome),
        ):
            ran_s = run_time_s(outcome.get("started_at") or known, at, None)
            self.paid[attempt_id] = cost(PRICE.per_hour, ran_s)

    @rule(job_id=jobs, state=st.sampled_from(list(JobState)))
    def settle(self, job_id, state):
        if state in (JobState.CANCELLED, JobState.FAILED):
            legal = state in JOB_MOVES[self.job_state(job_id)] and not self.life.live(
                job_id
            )
            self.attempt_to(legal, lambda: self.life.settle(job_id, state))

    @rule(job_id=jobs)
    def resume(self, job_id):
        legal = self.job_state(job_id) in (
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.TIMED_OUT,
        )
        if self.attempt_to(legal, lambda: self.life.resume(job_id)):
            self.over.pop(job_id)

    @rule(job_id=jobs, lost=st.booleans())
    def lose_sight(self, job_id, lost):
        state = JobState.UNKNOWN if lost else JobState.RUNNING
        legal = state in JOB_MOVES[self.job_state(job_id)]
        self.attempt_to(legal, lambda: self.life.lose_sight(job_id, lost=lost))

    @invariant()
    def a_job_has_one_live_attempt_exactly_while_it_is_away(self):
        for job_id, row in self.life.tables[Table.JOBS].items():
            away = JobState(row["state"]) in (
                JobState.ASSIGNED,
                JobState.RUNNING,
                JobState.UNKNOWN,
            )
            assert self.life.live(job_id) == ([row["attempt_id"]] if away else [])
            assert away or row["attempt_id"] is None

    @invariant()
    def what_is_over_stays_as_it_is(self):
        for job_id in self.life.tables[Table.JOBS]:
            if self.job_state(job_id).terminal:
                assert self.over.setdefault(
                    job_id, deepcopy(self.life.row(job_id))
                ) == self.life.row(job_id)

    @invariant()
    def failures_stay_within_the_retries(self):
        assert all(
            row["failures"] <= row["retry_count"]
            for row in self.life.tables[Table.JOBS].values()
        )

    @invariant()
    def every_attempt_is_paid_for_once(self):
        costs = {
            i: Decimal(row["cost"])
            for i, row in self.life.tables[Table.ATTEMPTS].items()
        }
        assert {i: paid for i, paid in costs.items() if i in self.paid} == self.paid
        assert sum(costs.values()) == sum(self.paid.values())

    @invariant()
    def numbers_and_tokens_count_the_attempts(self):
        for job_id, job in self.life.tables[Table.JOBS].items():
            rows = [
                row
                for _, row in sorted(self.life.tables[Table.ATTEMPTS].items())
                if row["job_id"] == job_id
            ]
            counted = list(range(1, job["attempts"] + 1))
            assert (
                [row["number"] for row in rows]
                == [row["token"] for row in rows]
                == counted
            )

    @invariant()
    def the_view_is_the_fold_of_the_journal(self):
        assert memory(view_of(self.life.journal)) == memory(self.life.view)

    @invariant()
    def the_view_is_what_a_restart_reads(self):
        assert memory(self.read_anew()) == memory(self.life.view)

    def read_anew(self) -> View:
        changes = [
            Change(table, key, row)
            for table in (Table.JOBS, Table.ATTEMPTS)
            for key, row in self.life.tables[table].items()
        ]
        return view_of(
            [Event(EventKind.NODE_CHANGED, 0.0, (change,)) for change in changes]
        )


TestJobs = Jobs.TestCase
TestJobs.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
