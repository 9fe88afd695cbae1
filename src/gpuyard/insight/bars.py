"""Which of a log's progress bars is the training's.

1. A bar whose label speaks of something else (`Validating`, `Map`, `Downloading`, …) is only a log line.
2. The first other bar is the training bar. One with a label that says nothing of training must show metrics to be it.
3. A bar that is shown to be about the training (it has metrics or an epoch in its label, or a metric was printed while
   it ran) takes over from one that is not, or that has finished while no epoch is open. All others are only log lines:
   an evaluation's bar has neither, or comes within an epoch.
4. A training bar taken over at its very start, or redrawn afterwards, is the loop around: it counts the epochs.
5. After an epoch's printed header all starts anew, unless the training bar is in the midst of its way: then it goes on
   over the epochs.
"""

import re
from dataclasses import dataclass, replace

from gpuyard.insight.epochs import Epochs
from gpuyard.insight.reading import NUMBER, Reading, Trust

# Not `val_loss`: a training bar's label may tell metrics too
_OTHER = re.compile(
    r"\b(?:eval|val|test|predict|infer|sanity|scor|metric|sampl|generat|map|filter|token|process|preprocess|prepar|pack"
    r"|cast|convert|creat|comput|flatten|download|upload|load|fetch|extract|resolv|read|writ|sav|copy|cach|warm)"
    r"[a-z]*\b(?! (?:loss|acc))",
    re.IGNORECASE,
)
_TRAINING = re.compile(r"train|epoch|step|iter|fit|learn|optim|progress", re.IGNORECASE)
_HELD_OUT = re.compile(r"(?:eval|val|valid|validation|test)[_/]", re.IGNORECASE)
_NUMBER = re.compile(NUMBER)


@dataclass(slots=True, eq=False)
class _Bar:
    name: str = ""  # the label, without its numbers
    step: int = 0
    total: int | None = None
    vouched: bool = False  # shown to be about the training
    spans: bool = False  # counts on over epochs

    @property
    def running(self) -> bool:
        return self.total is None or self.step < self.total

    def is_drawn_as(self, name: str, total: int | None) -> bool:
        """Bars with no label are told apart by their totals; a bar may get its label after it was first drawn.

        Keras knows the total only at the end of the first epoch where the data do not tell it.
        """
        if self.name:
            return self.name == name
        return self.total == total or (self.total is None and self.step == total)


class Bars:
    """The bars of one log; tells the epochs it learns from them to `epochs`."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._training: _Bar | None = None
        self._around: _Bar | None = None
        self._latest: _Bar | None = None

    def draw(self, reading: Reading) -> Reading | None:
        """What a drawn bar says about the training as a whole; None if it is about something else."""
        label = reading.label or ""
        if _OTHER.search(label):
            return None
        bar = self._update(reading, label)
        if bar is self._around:
            return self._count_epochs(bar, reading)
        if bar is not self._training:
            plain = not label or _TRAINING.search(label) is not None
            if not self._takes_over(bar, plain):
                return None
            self._take_over(bar)
        if bar.vouched:
            reading = replace(reading, trust=Trust.FORM)
        if reading.within_epoch or (self._epochs.index is not None and not bar.spans):
            return self._epochs.spread(reading)
        return reading

    def header(self) -> None:
        """An epoch's header is printed."""
        bar = self._training
        if bar is not None and bar.running and bar.total is not None:
            bar.spans = True
        else:
            self._training = None

    def printed(self, reading: Reading) -> None:
        """A line of metrics is printed: it vouches for the bar that is running, if it is about the training itself."""
        bar = self._latest
        if bar is None or not bar.running or reading.step is not None:
            return
        if any(not _HELD_OUT.match(name) for name in reading.metrics):
            bar.vouched = True
            if bar is not self._training and bar is not self._around and self._takes_over(bar, plain=True):
                self._take_over(bar)

    def _update(self, reading: Reading, label: str) -> _Bar:
        name = _NUMBER.sub("#", label)
        known = (self._training, self._around, self._latest)
        bar = next((bar for bar in known if bar is not None and bar.is_drawn_as(name, reading.total)), None) or _Bar()
        bar.name, bar.step, bar.total = name, reading.step or 0, reading.total
        bar.vouched = bar.vouched or bool(reading.metrics) or reading.epoch is not None
        self._latest = bar
        return bar

    def _takes_over(self, bar: _Bar, plain: bool) -> bool:
        training = self._training
        if training is None:
            return plain or bar.vouched
        if not bar.vouched:
            return False
        return not training.vouched or (not training.running and self._epochs.index is None)

    def _take_over(self, bar: _Bar) -> None:
        before, self._training = self._training, bar
        if before is not None and before.running:
            self._around = before
            if before.step == 0:
                self._epochs.enter(0, before.total)

    def _count_epochs(self, bar: _Bar, reading: Reading) -> Reading:
        done = reading.step or 0
        self._epochs.enter(done, reading.total)
        return replace(reading, step=None, total=None, epoch=done, epochs=reading.total, eta_s=None, rate=None)
