"""Promise of the ledger: its tables are the fold of its journal, pruned or not."""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.domain.errors import IllegalMoveError
from gpuyard.ledger.apply import apply, event_of, fold
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.prune import Pruner, history
from gpuyard.ledger.replay import check
from tests.support.blank_ledger import blank_ledger
from tests.support.examples import examples
from tests.support.ledger import node_event, prune_slices, state_of, trust_event
from tests.support.life import Life

Step = Callable[[Life, int], object]


def _pick(of: dict, number: int) -> str:
    return sorted(of)[number % len(of)]


STEPS: dict[str, Step] = {
    "submit": lambda life, n: life.submit(
        name=f"job-{n}", retry_count=n % 3, labels={"n": str(n)}
    ),
    "intend": lambda life, n: life.intend(_pick(life.jobs, n)),
    "send": lambda life, n: life.send(_pick(life.attempts, n)),
    "start": lambda life, n: life.start(_pick(life.attempts, n)),
    "stop": lambda life, n: life.stop(_pick(life.attempts, n)),
    "end": lambda life, n: life.end(
        _pick(life.attempts, n), exit_code=n % 2, usage={"cpu_s": n / 7}
    ),
    "settle": lambda life, n: life.settle(_pick(life.jobs, n)),
    "resume": lambda life, n: life.resume(_pick(life.jobs, n)),
    "lose": lambda life, n: life.lose_sight(_pick(life.jobs, n), lost=n % 2 == 0),
    "save": lambda life, n: life.save_checkpoint(_pick(life.attempts, n), step=n),
    "remove": lambda life, n: life.remove(_pick(life.jobs, n)),
    "trust": lambda life, n: life.record(trust_event(n)),
    "node": lambda life, n: life.record(
        node_event(n % 4, state=f"s{n}", limits={"n": n}, reason=None)
    ),
}
histories = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 30)),
    min_size=5,
    max_size=40,
)


def live_through(steps: list[tuple[str, int]]) -> Life:
    """A life in which every step that can be made is made."""
    life = Life()
    for name in range(4):
        life.run(life.submit(name=f"job-{name}", retry_count=1))
    for name, number in steps:
        try:
            STEPS[name](life, number)
        except IllegalMoveError:
            continue
    return life


def replayed(ledger: Ledger, new: Callable[[], Ledger]) -> dict:
    """The state tables of a fresh ledger into which this one's history is folded."""
    fresh = new()
    with ledger.engine.connect() as source, fresh.engine.begin() as tx:
        fold(tx, history(source))
    state = state_of(fresh.engine)
    fresh.close()
    return dict(state)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Ledger]:
    """Makes empty ledgers, each a copy of one: making one takes longer than a whole
    example.
    """
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        return lambda: Ledger.open(server.ledger())
    folder = tmp_path_factory.mktemp("replay")
    numbers = count()
    return lambda: Ledger.open(blank_ledger(folder / f"{next(numbers)}.db"))


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=histories,
    cut=st.integers(0, 40),
    keep=st.integers(1, 30),
    group=st.integers(1, 9),
)
def test_the_tables_are_the_fold_of_the_journal(new, steps, cut, keep, group):
    journal = live_through(steps).journal
    live = new()

    def put(events) -> None:
        for start in range(0, len(events), group):
            with live.engine.begin() as tx:
                apply(tx, events[start : start + group])

    put(journal[:cut])
    assert replayed(live, new) == state_of(live.engine)
    pruned = prune_slices(live.engine, Pruner(keep))
    put(journal[cut:])
    state = state_of(live.engine)
    assert replayed(live, new) == state
    pruned += prune_slices(live.engine, Pruner(keep))
    assert pruned == max(len(journal) - keep, 0)
    assert prune_slices(live.engine, Pruner(keep)) == 0
    assert state_of(live.engine) == state
    assert replayed(live, new) == state
    live.close()


upkeep = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(1, 30),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=12,
)


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=histories,
    work=upkeep,
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 4)),
)
def test_the_fold_holds_in_the_middle_of_pruning_and_after_a_kill(
    new, steps, work, sizes
):
    journal = live_through(steps).journal
    live = new()
    for events, keep, slices, killed in work:
        with live.engine.begin() as tx:
            apply(tx, journal[:events])
        journal = journal[events:]
        pruner = Pruner(keep, events_at_once=sizes[0], rows_at_once=sizes[1])
        prune_slices(live.engine, pruner, slices, killed=killed)
        report = check(live.engine)
        assert report.ok, report.differences
    live.close()


@settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=histories)
def test_what_the_ledger_holds_is_what_the_events_say(new, steps):
    life = live_through(steps)
    ledger = new()
    with ledger.engine.begin() as tx:
        assert apply(tx, life.journal) == len(life.journal)
    for table, rows in life.tables.items():
        stored = state_of(ledger.engine)[table]
        assert stored.keys() == rows.keys()
        for key, row in rows.items():
            assert {name: stored[key][name] for name in row} == row
    assert [
        event_of(row) for row in ledger.queries.events_after(0, 10_000)
    ] == life.journal
    ledger.close()


@pytest.mark.anyio
async def test_pruning_beside_the_writer(ledger, writer, new):
    for number in range(300):
        writer.add_events([node_event(number % 40, reason=f"r{number}")])
        if number % 100 == 0:
            await ledger.prune(writer, 50)
    await writer.committed()
    await ledger.prune(writer, 50)
    assert [row["seq"] for row in ledger.queries.events_after(0, 1000)] == list(
        range(251, 301)
    )
    assert replayed(ledger, new) == state_of(ledger.engine)
    writer.add_events([node_event(1)])
    await writer.committed()
    assert ledger.queries.last_seq() == 301
