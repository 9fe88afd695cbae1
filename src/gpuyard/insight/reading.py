"""The reading of one line, whatever program printed it, and what the forms of lines
share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

# Bounded, so that what they match is finite and cheap to find in any line.
NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,2})?"
COUNT = r"\d{1,15}"


class Confidence(IntEnum):
    """How much a line's step is trusted; the highest in a log counts."""

    EPOCHS = 0  # the log counts epochs only
    BAR = 1  # a progress bar that may not be about the training
    GUESS = 2  # the fallback `key=value`
    FORM = 3  # a known program's line
    EXPLICIT = 4  # the program reports to gpuyard


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reading of one line. A field is None if the line does not have it.

    `step` of `total` counts over the whole training, or within the epoch if
    `within_epoch`. `epoch` is as printed: the epochs done (a fraction) or, with
    `within_epoch`, the number of the running epoch. The log's first epoch has the
    number `first_epoch` (None: the form does not tell). `rate` is in steps per second,
    `eta_s` in seconds for what `total` covers. `label` is the text before the bar, None
    if the line is not a bar. `is_result`: the results of an
    evaluation, which a program may print twice.
    """

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    rate: float | None = None
    eta_s: float | None = None
    metrics: Mapping[str, float]
    confidence: Confidence = Confidence.FORM
    label: str | None = None
    within_epoch: bool = False
    first_epoch: int | None = None
    is_result: bool = False

    @property
    def opens_epoch(self) -> bool:
        """True when the line is a bare header such as `Epoch 2/5`."""
        return self.within_epoch and self.step is None


def seconds(clock: str) -> float | None:
    """`12s`, `4:05` or `1:02:03` in seconds; None for `?` and `-:--:--`."""
    total = 0
    for part in clock.removesuffix("s").split(":"):
        if not part.isdecimal():
            return None
        total = total * 60 + int(part)
    return float(total)
