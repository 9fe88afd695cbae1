"""Warn where strategies of a run did not have the same machines, programs or model."""

# pandas has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

_MOST_NAMED = 4
_COMPARED = (
    ("gpu_name", "GPUs", "speeds"),
    ("torch_version", "versions of PyTorch", "speeds and tokens"),
)
Label = Callable[[str], str]


def machine_warnings(metrics: pd.DataFrame, label: Label) -> Iterator[str]:
    """Yield a sentence for each thing in which strategies differ but should not.

    `metrics` has a row for each rank, `label` gives what people call a strategy.
    """
    for column, what, compared in _COMPARED:
        if column in metrics:
            yield from _unlike(metrics, column, what, compared, label)
    if "engine_version" not in metrics:
        return
    for engine, ranks in metrics.groupby("engine", sort=False):
        yield from _unlike(
            ranks, "engine_version", f"versions of {engine}", "speeds and tokens", label
        )


def model_warning(entries: Sequence[Mapping[str, Any]], label: Label) -> str:
    """Say if the model's files changed while the run went on; empty if not."""
    by_model: dict[str, list[str]] = {}
    newest = {str(entry["strategy_id"]): entry for entry in entries}
    for strategy_id, entry in newest.items():
        mark = entry.get("model_fingerprint")
        if mark:
            by_model.setdefault(str(mark), []).append(label(strategy_id))
    if len(by_model) < 2:
        return ""
    first, *others = by_model.values()
    return (
        f"The model's files changed during the run: {_listed(first)} had other files"
        f" than {_listed([name for names in others for name in names])}, so their"
        " answers may differ for that alone."
    )


def _unlike(
    metrics: pd.DataFrame, column: str, what: str, compared: str, label: Label
) -> Iterator[str]:
    by_kind: dict[str, list[str]] = {}
    for strategy_id, ranks in metrics.groupby("strategy_id", sort=False):
        # Tables of earlier versions have empty texts where nothing was told.
        kinds = sorted({str(value) for value in ranks[column].dropna() if value})
        if kinds:
            by_kind.setdefault(" and ".join(kinds), []).append(label(str(strategy_id)))
    if len(by_kind) < 2:
        return
    told = [f"{_listed(names)} had {kind}" for kind, names in by_kind.items()]
    yield (
        f"Strategies had different {what}: {'; '.join(told[:_MOST_NAMED])}. So their"
        f" {compared} differ for that, too."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
