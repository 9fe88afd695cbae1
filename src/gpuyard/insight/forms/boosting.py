"""XGBoost, LightGBM and CatBoost: a line per round, with tabs between its values.

`[0]	train-logloss:0.498	eval-auc:0.949`, `[2]	valid_1's auc: 0.960`,
`10:	learn: 0.427	test: 0.433	best: 0.433 (10)	total: 65ms	remaining: 173ms`.
"""

import re

from gpuyard.insight.reading import COUNT, NUMBER, Reading

_ROUND = re.compile(rf"(?:\[({COUNT})\]|({COUNT}):)\t")
_VALUE = re.compile(rf"([^\t:]{{1,64}}): ?({NUMBER})(?:[ +].*)?")
# CatBoost's best value so far is no curve of its own.
_IGNORED = frozenset({"best", "total", "remaining"})


def read(line: str) -> Reading | None:
    """The metrics of one round, which counts as a step."""
    if "\t" not in line or not (found := _ROUND.match(line)):
        return None
    metrics: dict[str, float] = {}
    for cell in line[found.end() :].split("\t"):
        value = _VALUE.fullmatch(cell)
        if value is not None and value[1] not in _IGNORED:
            name = value[1].replace("'s ", "_").replace(" ", "_")
            metrics[name] = float(value[2])
    if not metrics:
        return None
    return Reading(step=int(found[1] or found[2]), metrics=metrics)
