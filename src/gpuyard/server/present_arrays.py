"""From ledger rows to the array resource."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.domain.arrays import Array, array_state, exact_amount
from gpuyard.domain.end_notices import without_addresses
from gpuyard.domain.errors import NotFoundError
from gpuyard.domain.jobs import Cost
from gpuyard.domain.secret_names import without_keys
from gpuyard.domain.states import JobState
from gpuyard.ledger.queries import Queries

Row = Mapping[str, Any]


def present_arrays(queries: Queries, rows: Sequence[Row]) -> list[Array]:
    """The resources of these rows of arrays. Reads a row for each task, so call it
    in a thread.
    """
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    counts: defaultdict[str, list[Row]] = defaultdict(list)
    for count in queries.task_counts(ids):
        counts[count["array_id"]].append(count)
    users = queries.users_of_arrays(ids)
    return [_array(row, counts[row["id"]], users.get(row["id"])) for row in rows]


def present_array(queries: Queries, array_id: str) -> Array:
    """The resource of an array, with its spec and what it has cost; NotFoundError if it
    has just been removed.
    """
    row = queries.array(array_id)
    if row is None:
        raise NotFoundError(
            f"There is no array {array_id!r}.", "`gpuyard jobs` lists them."
        )
    (array,) = present_arrays(queries, [row])
    spec = dict(queries.specs([array_id]).get(array_id, {}))
    if "environment" in spec:
        spec["environment"] = without_keys(spec["environment"])
    costs = queries.array_costs(array_id)
    cost = Cost()
    if costs:
        amount = sum((exact_amount(row["amount"]) for row in costs), start=cost.amount)
        last = costs[-1]
        cost = Cost(
            amount=amount,
            currency=last["currency"],
            basis=last["basis"],
            tier=last["tier"] or None,
        )
    shown = {"spec": without_addresses(spec), "cost": cost}
    return array.model_copy(update=shown)


def _array(row: Row, tasks: Sequence[Row], user: str | None) -> Array:
    numbers = {JobState(task["state"]): int(task["n"]) for task in tasks}
    counts = {state: numbers[state] for state in JobState if state in numbers}
    state = array_state(counts)
    begun = [task["started_at"] for task in tasks if task["started_at"] is not None]
    ended = [task["ended_at"] for task in tasks if task["ended_at"] is not None]
    return Array(
        **{
            name: row[name]
            for name in (
                "id",
                "name",
                "tasks",
                "total",
                "at_most",
                "priority",
                "project",
                "created_at",
            )
        },
        state=state,
        counts=counts,
        user=user,
        labels=row["labels"] or {},
        started_at=min(begun, default=None),
        ended_at=max(ended, default=None) if state.terminal else None,
        warnings=row["warnings"] or [],
    )
