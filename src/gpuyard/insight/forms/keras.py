"""Keras: the header `Epoch 1/5`, which many scripts print too, and bars.

A bar is `2/2 ━━━━ 0s 13ms/step - loss: 0.1350`, or at `verbose=2` `2/2 - 0s - 8ms/step
- loss: 0.1353`.
"""

import re

from gpuyard.insight.reading import COUNT, NUMBER, Reading

_HEADER = re.compile(
    rf"\W{{0,40}}epoch\W{{1,3}}({COUNT}) ?/ ?({COUNT})\W{{0,40}}", re.IGNORECASE
)
_BAR = re.compile(
    rf"\s*({COUNT})/({COUNT}|Unknown) .*?(?:"
    rf" ({NUMBER})(us|ms|s)/(?:step|epoch|sample))?(?= - [\w/.-]+: )"
)
_METRIC = re.compile(rf" - ([\w/.-]{{1,64}}): ({NUMBER})(?![\w.])")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def read(line: str) -> Reading | None:
    """An epoch's header or a drawn bar; a bar with no metrics is `predict`, not
    training.
    """
    if ("poch" in line or "EPOCH" in line) and (header := _HEADER.fullmatch(line)):
        return Reading(
            epoch=float(header[1]), epochs=int(header[2]), metrics={}, within_epoch=True
        )
    if " - " not in line or not (bar := _BAR.match(line)):
        return None
    metrics = {name: float(value) for name, value in _METRIC.findall(line)}
    if not metrics:
        return None
    step, total, time, unit = bar.groups()
    time_s = float(time) * _SECONDS[unit] if time else 0.0
    return Reading(
        step=int(step),
        total=None if total == "Unknown" else int(total),
        rate=1 / time_s if time_s > 0 else None,
        metrics=metrics,
        label="",
        within_epoch=True,
    )
