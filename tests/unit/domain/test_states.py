"""The tables of legal moves."""

import pytest

from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    TERMINAL,
    AttemptState,
    JobState,
    check_move,
)

TABLES = [(JOB_MOVES, JobState), (ATTEMPT_MOVES, AttemptState)]
FINAL = {*TERMINAL, AttemptState.ENDED, AttemptState.LOST}


@pytest.mark.parametrize(("table", "states"), TABLES, ids=["job", "attempt"])
class TestTables:
    def test_every_state_has_a_row(self, table, states):
        assert set(table) == set(states)

    def test_every_move_leads_to_a_state_and_none_to_itself(self, table, states):
        for state, moves in table.items():
            assert moves <= set(states)
            assert state not in moves

    def test_every_state_can_be_reached(self, table, states):
        first = next(iter(states))
        seen = {first}
        frontier = {first}
        while frontier:
            frontier = {new for old in frontier for new in table[old]} - seen
            seen |= frontier
        assert seen == set(states)

    def test_every_state_leads_to_an_end_or_to_rest(self, table, states):
        for state in set(states) - FINAL:
            assert table[state], f"{state} is a dead end"

    def test_check_move_is_the_table(self, table, states):
        for old in states:
            for new in states:
                if new in table[old]:
                    check_move(table, "it", old, new)
                else:
                    with pytest.raises(
                        IllegalMoveError, match=f"it cannot go from {old} to {new}"
                    ):
                        check_move(table, "it", old, new)


def test_the_terminal_states_are_final_but_for_a_resume():
    assert {state for state in JobState if state.terminal} == {
        "completed",
        "failed",
        "cancelled",
        "timed_out",
    }
    assert JOB_MOVES[JobState.COMPLETED] == frozenset()
    assert all(
        JOB_MOVES[state] == {JobState.QUEUED}
        for state in TERMINAL - {JobState.COMPLETED}
    )


def test_an_attempt_that_is_over_stays_over():
    over = {state for state in AttemptState if not state.live}
    assert over == {"ended", "lost"}
    assert all(ATTEMPT_MOVES[state] == frozenset() for state in over)
    assert all(ATTEMPT_MOVES[state] >= over for state in AttemptState if state.live)


def test_an_attempt_that_is_being_ended_never_runs_again():
    assert AttemptState.RUNNING not in ATTEMPT_MOVES[AttemptState.ENDING]


def test_an_illegal_move_says_what_is_legal():
    with pytest.raises(
        IllegalMoveError, match="From queued it may go to: assigned, cancelled, failed"
    ):
        check_move(JOB_MOVES, "job 1", JobState.QUEUED, JobState.RUNNING)
    with pytest.raises(IllegalMoveError, match="nothing: it is final"):
        check_move(JOB_MOVES, "job 1", JobState.COMPLETED, JobState.QUEUED)
