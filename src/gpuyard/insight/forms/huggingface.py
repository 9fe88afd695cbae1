"""Hugging Face Trainer: a dict per log step, `{'loss': '5.532', 'epoch': '0.125'}`;
version 4 did not quote the values.

JSON lines of the same kind are read too. The Trainer's dict has no step: that is the
training bar's, drawn beside it. tqdm redraws at most every 0.1 s, so with shorter steps
the bar, and so the step, can be one drawing behind.
"""

import re

from gpuyard.insight.names import is_metric
from gpuyard.insight.reading import NUMBER, Reading

_ITEM = re.compile(
    rf"['\"]([^'\"]{{1,64}})['\"]:\s?['\"]?({NUMBER})['\"]?\s{{0,4}}[,}}]"
)
_TIMINGS = ("_runtime", "_per_second")


def read(line: str) -> Reading | None:
    """The numbers of a dict with an epoch, a step or a loss; of the summary at the
    training's end only the epoch.
    """
    if not line.endswith("}") or "{" not in line:
        return None
    items = {
        name: float(value) for name, value in _ITEM.findall(line[line.index("{") :])
    }
    has_loss = any("loss" in name for name in items)
    if "epoch" not in items and "step" not in items and not has_loss:
        return None
    step = items.pop("step", None)
    epoch = items.pop("epoch", None)
    metrics: dict[str, float] = {}
    # The summary's loss is the mean of the whole run, not a point of the curve.
    if "train_runtime" not in items:
        metrics = {
            name: value
            for name, value in items.items()
            if is_metric(name) and not name.endswith(_TIMINGS)
        }
    return Reading(
        step=None if step is None else int(step), epoch=epoch, metrics=metrics
    )
