"""OpenMMLab's programs (MMDetection and others).

`Epoch(train) [1][50/200]  lr: 1.0e-02  eta: 0:01:02  loss: 0.32`, before MMEngine
`Epoch [1][50/200]<tab>lr: 0.01, eta: 0:01:02, loss: 0.32`; by iterations `Iter(train)
[50/1000]  loss: 0.32`. They count epochs from 1.
"""

import re

from gpuyard.insight.names import is_metric
from gpuyard.insight.reading import COUNT, NUMBER, Reading

_EPOCH = re.compile(
    rf"\bEpoch(?:\((?P<mode>\w+)\))? {{1,4}}\[ *(?P<epoch>{COUNT})\]"
    rf"\[ *(?P<step>{COUNT})(?:/(?P<total>{COUNT}))?\]\s+(?=[\w/.@]+: )"
)
_ITERATION = re.compile(
    rf"\bIter(?:\((?P<mode>\w+)\))? {{1,4}}\[ *(?P<step>{COUNT})/ *(?P<total>{COUNT})\]"
    r"\s+(?=[\w/.@]+: )"
)
_VALUE = re.compile(rf"(?<!\S)([\w/.@-]{{1,64}}): ({NUMBER})(?=[\s,]|$)")


def read(line: str) -> Reading | None:
    """The metrics of a training step, or those of a validation without a step."""
    if "][" not in line and "Iter" not in line:
        return None
    found = _EPOCH.search(line) or _ITERATION.search(line)
    if found is None:
        return None
    metrics = {
        name.lower(): float(value)
        for name, value in _VALUE.findall(line, found.end())
        if is_metric(name)
    }
    if found["mode"] not in (None, "train"):
        return Reading(metrics=metrics)
    epoch = found.groupdict().get("epoch")
    return Reading(
        step=int(found["step"]),
        total=int(found["total"]) if found["total"] else None,
        epoch=float(epoch) if epoch else None,
        metrics=metrics,
        within_epoch=epoch is not None,
        first_epoch=1,
    )
