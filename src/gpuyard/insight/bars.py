"""Finds the training's progress bar among the bars in a log.

1. A bar whose label is about something else (`Validating`, `Map`, `Downloading`, …) is
only a log line.

2. The first other bar is the training bar. If its label says nothing about training, it
must show metrics.

3. A bar is known to be about the training if it has metrics or an epoch in its label,
or if a metric was printed while it ran. Such a bar takes over from one that is not
known to be, or that has finished while no epoch is open. All others are only log lines:
an evaluation's bar has neither, or comes within an epoch.

4. A training bar that is taken over at its very start, or drawn again afterwards, is
the bar of the loop around: it counts the epochs.

5. After an epoch's printed header all this starts again, unless the training bar is
unfinished: then it continues over the epochs.
"""

import re
from dataclasses import dataclass, replace

from gpuyard.insight.epochs import Epochs
from gpuyard.insight.reading import NUMBER, Confidence, Reading

# Not `val_loss`: a training bar's label may show that too.
_OTHER = re.compile(
    r"\b(?:eval|val|test|predict|infer|sanity|scor|metric|sampl|generat|map|filter|token|process|preprocess|prepar|pack"
    r"|cast|convert|creat|comput|flatten|download|upload|load|fetch|extract|resolv|read|writ|sav|copy|cach|warm)"
    r"[a-z]*\b(?! (?:loss|acc))",
    re.IGNORECASE,
)
_TRAINING = re.compile(
    r"train|epoch|step|iter|fit|learn|optim|progress|trial|execut", re.IGNORECASE
)
_HELD_OUT = re.compile(r"(?:eval|val|valid|validation|test)[_/]", re.IGNORECASE)
_NUMBER = re.compile(NUMBER)


def is_held_out(name: str) -> bool:
    """True for a metric of an evaluation: `val_loss`."""
    return _HELD_OUT.match(name) is not None


@dataclass(slots=True, eq=False)
class _Bar:
    name: str = ""  # the label, without its numbers
    step: int = 0
    total: int | None = None
    is_training: bool = False  # known to be about the training
    spans_epochs: bool = False  # counts on over epochs

    @property
    def running(self) -> bool:
        return self.total is None or self.step < self.total

    def is_drawn_as(self, name: str, total: int | None) -> bool:
        """True when a drawn bar with this name and total is this one. Bars without a
        label are distinguished by their totals; a bar may get its label, or more of
        it, after it was first drawn.

        If the data do not tell it, Keras knows the total only at the end of the first
        epoch.
        """
        if self.name:
            has_grown = self.total == total and name.startswith(self.name)
            return self.name == name or has_grown
        return self.total == total or (self.total is None and self.step == total)


class Bars:
    """The bars of one log; reports the epochs that they show to `epochs`."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._training: _Bar | None = None
        self._around: _Bar | None = None
        self._latest: _Bar | None = None

    def draw(self, reading: Reading) -> Reading | None:
        """The reading of a drawn bar, counted over the whole training; None if the bar
        is about something else.
        """
        label = reading.label or ""
        if _OTHER.search(label):
            return None
        bar = self._update(reading, label)
        if not reading.step:
            # Before its first step a bar can only show values left from another.
            reading = replace(reading, metrics={})
        if bar is self._around:
            return self._count_epochs(bar, reading)
        if bar is not self._training:
            may_be_training = not label or _TRAINING.search(label) is not None
            if not self._takes_over(bar, may_be_training):
                return None
            self._take_over(bar)
        if bar.is_training:
            reading = replace(reading, confidence=Confidence.FORM)
        in_open_epoch = self._epochs.index is not None and not bar.spans_epochs
        if reading.within_epoch or in_open_epoch:
            return self._epochs.spread(reading)
        return reading

    def header(self) -> None:
        """Note that an epoch's header was printed."""
        bar = self._training
        if bar is not None and bar.running and bar.total is not None:
            bar.spans_epochs = True
        else:
            self._training = None

    def printed(self, reading: Reading) -> None:
        """Note a printed line of metrics. If these are the training's own, the bar that
        is running is about the training.
        """
        bar = self._latest
        if bar is None or not bar.running or reading.step is not None:
            return
        if all(map(is_held_out, reading.metrics)):
            return
        bar.is_training = True
        if bar is self._training or bar is self._around:
            return
        if self._takes_over(bar, may_be_training=True):
            self._take_over(bar)

    def _update(self, reading: Reading, label: str) -> _Bar:
        name = _NUMBER.sub("#", label)
        bar = _Bar()
        for known in (self._training, self._around, self._latest):
            if known is not None and known.is_drawn_as(name, reading.total):
                bar = known
                break
        bar.name = name
        bar.step = reading.step or 0
        bar.total = reading.total
        if reading.metrics or reading.epoch is not None:
            bar.is_training = True
        self._latest = bar
        return bar

    def _takes_over(self, bar: _Bar, may_be_training: bool) -> bool:
        training = self._training
        if training is None:
            return may_be_training or bar.is_training
        if not bar.is_training:
            return False
        finished = not training.running and self._epochs.index is None
        return finished or not training.is_training

    def _take_over(self, bar: _Bar) -> None:
        before = self._training
        self._training = bar
        if before is not None and before.running:
            self._around = before
            if before.step == 0:
                self._epochs.enter(0, before.total)

    def _count_epochs(self, bar: _Bar, reading: Reading) -> Reading:
        done = reading.step or 0
        self._epochs.enter(done, reading.total)
        return replace(
            reading,
            step=None,
            total=None,
            epoch=done,
            epochs=reading.total,
            eta_s=None,
            rate=None,
        )
