"""A counter on a line of its own: `Epoch 1`, `EPOCH: 2`, JAX's `Epoch 0 in 3.22 sec`,
`STEP:  3`. What the next lines print belongs to it.
"""

import re

from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading

_EPOCH = re.compile(
    rf"\W{{0,40}}epoch\W{{1,4}}({COUNT})(?: in {NUMBER} ?s(?:ec(?:onds)?)?)?\W{{0,40}}",
    re.IGNORECASE,
)
_STEP = re.compile(
    rf"\W{{0,40}}(?:step|iteration|iter|episode|round)\W{{1,4}}({COUNT})"
    rf"(?: ?/ ?({COUNT}))?\W{{0,40}}",
    re.IGNORECASE,
)
_WORDS = re.compile("epoch|step|iter|episode|round", re.IGNORECASE)
_LONGEST = 100


def read(line: str) -> Reading | None:
    """An epoch's header, or a step without metrics."""
    if len(line) > _LONGEST or not _WORDS.search(line):
        return None
    if header := _EPOCH.fullmatch(line):
        return Reading(epoch=float(header[1]), metrics={}, within_epoch=True)
    if counted := _STEP.fullmatch(line):
        return Reading(
            step=int(counted[1]),
            total=int(counted[2]) if counted[2] else None,
            metrics={},
            confidence=Confidence.EPOCHS,
        )
    return None
