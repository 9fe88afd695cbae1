"""Speech toolkits: SpeechBrain's `Going into epoch 2`, and ESPnet's
`3epoch:train:1-682batch: iter_time=2.9e-04, loss=123.9, acc=0.013`.
"""

import re

from gpuyard.insight.names import is_metric
from gpuyard.insight.reading import COUNT, NUMBER, Reading

_HEADER = re.compile(rf"speechbrain\S* .{{0,64}}Going into epoch ({COUNT})")
_BATCHES = re.compile(rf"\b({COUNT})epoch:train:{COUNT}-({COUNT})batch: ")
_VALUE = re.compile(rf"(?<!\S)(\w{{1,64}})=({NUMBER})(?=,|$)")


def read(line: str) -> Reading | None:
    """An epoch's header, or the mean of the metrics over some batches."""
    if "epoch" not in line:
        return None
    if "speechbrain" in line and (header := _HEADER.match(line)):
        return Reading(epoch=float(header[1]), metrics={}, within_epoch=True)
    if "epoch:train:" not in line or not (found := _BATCHES.search(line)):
        return None
    metrics = {
        name: float(value)
        for name, value in _VALUE.findall(line, found.end())
        if is_metric(name)
    }
    return Reading(
        step=int(found[2]),
        epoch=float(found[1]),
        metrics=metrics,
        within_epoch=True,
        first_epoch=1,
    )
