"""Batches of an evaluation, and its summary, ` * Acc@1 31.200 Acc@5 60.900`.

A batch: `Test: [ 20/ 20]	Loss 1.92 (1.87)	Acc@1  25.00 ( 31.20)`. PyTorch's
ImageNet example, torchvision, timm and Swin Transformer print them.

A value in brackets is the mean so far. So only the last batch tells a result.
"""

import re

from gpuyard.insight.names import is_metric
from gpuyard.insight.reading import COUNT, NUMBER, Reading

_BATCH = re.compile(
    rf"\b(?:Test|Val|Valid|Validation|Eval)(?: \([^)]{{1,16}}\))?: {{1,4}}"
    rf"\[ *({COUNT})/ *({COUNT})\](?=\s)"
)
_SUMMARY = re.compile(r"\s{0,4}\* (?= {0,4}Acc@)")
_VALUE = re.compile(
    rf"(?<!\S)([A-Za-z][\w/@.-]{{0,63}}):?\s{{1,8}}({NUMBER})"
    rf"(?: \( {{0,8}}({NUMBER})\))?(?=\s|$)"
)


def read(line: str) -> Reading | None:
    """The results of a whole evaluation; nothing but the fact that it is one if it goes
    on.
    """
    if "@" in line and (found := _SUMMARY.match(line)):
        return _results(line, found.end())
    if ": [" not in line and ":  [" not in line:
        return None
    found = _BATCH.search(line)
    if found is None:
        return None
    # torchvision, which says when it will be over, counts from 0.
    last = int(found[2]) - (" eta: " in line)
    if int(found[1]) < last:
        return Reading(metrics={})
    return _results(line, found.end())


def _results(line: str, start: int) -> Reading:
    metrics: dict[str, float] = {}
    for name, value, mean in _VALUE.findall(line, start):
        if is_metric(name):
            metrics[f"test_{name.lower()}"] = float(mean or value)
    return Reading(metrics=metrics, is_result=True)
