"""What a run leaves on the server, so that the page can show it: the figures of each
strategy over all variants, and its rank.
"""

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gpuyard.client.calls import Call
from gpuyard.domain.studies import StrategyResult, StudyResult
from gpuyard.studies.run_table import PRIMARY, RunTable

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

_LONGEST = 400
_MOST_WARNINGS = 100
_MOST_STRATEGIES = 400
"""As many as the server takes."""
_COMPUTED = ("label", "rank", "figure", "not_ranked", "agreement")
_COPIED = [name for name in StrategyResult.model_fields if name not in _COMPUTED]


def leave_results(client: "Client", table: RunTable, model: str) -> None:
    """Leave them; GpuyardError."""
    path = f"/api/v1/studies/{table.run_id}"
    body = body_of(table, model, time.time())
    read = StudyResult.model_validate
    client.call(Call("PUT", path, read, body=body, done_once=True))


def body_of(table: RunTable, model: str, at: float) -> dict[str, Any]:
    """As the server takes it, at a time (UTC seconds)."""
    ranking = table.ranking
    rows = _best_first(table)
    warnings = [_short(one) for one in table.warnings[:_MOST_WARNINGS]]
    if len(rows) > _MOST_STRATEGIES:
        more = f"{len(rows) - _MOST_STRATEGIES} strategies more are only in the report"
        warnings = [more, *warnings[: _MOST_WARNINGS - 1]]
    return {
        "study": _short(table.document.get("study") or "study"),
        "model": _short(model),
        "objective": ranking.objective.value,
        "best": ranking.best or None,
        "reason": _short(ranking.reason),
        "agreement_with": "peer" if table.primary == PRIMARY[1] else "reference",
        "currency": table.currency,
        "at": at,
        "strategies": [_strategy(table, row) for row in rows[:_MOST_STRATEGIES]],
        "warnings": warnings,
    }


def _best_first(table: RunTable) -> list[dict[str, Any]]:
    """The rows of all strategies: as they are ranked, then the others as they ran."""
    places = {name: place for place, (name, _) in enumerate(table.ranking.order)}
    last = len(places)
    return sorted(
        table.strategies, key=lambda row: places.get(row["strategy_id"], last)
    )


def _strategy(table: RunTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """One strategy; null for a figure that the server refuses, as it cannot be."""
    name = row["strategy_id"]
    order = [ranked for ranked, _ in table.ranking.order]
    figures = dict(table.ranking.order)
    why_not = dict((*table.ranking.left_out, *table.ranking.wrong))
    label = table.label(name)
    left = {
        **{field: _plain(row.get(field)) for field in _COPIED},
        "label": _short(label) if label != name else "",
        "rank": order.index(name) + 1 if name in order else None,
        "figure": _plain(figures.get(name)),
        "not_ranked": _short(why_not.get(name, "")),
        "agreement": _plain(row.get(table.primary)),
    }
    try:
        StrategyResult.model_validate(left)
    except ValidationError as error:
        odd = {fault["loc"][0] for fault in error.errors()}
        left |= dict.fromkeys(map(str, odd))
    return left


def _plain(value: Any) -> Any:
    """A value that JSON has: numbers of NumPy become Python's, NaN becomes null."""
    if value is None or isinstance(value, str):
        return value
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def _short(text: Any) -> str:
    """One printable line of it."""
    line = " ".join(str(text).split())
    return "".join(one for one in line if one.isprintable())[:_LONGEST]
