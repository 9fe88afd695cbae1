"""From the bytes a program prints to how far it is and the series of its metrics."""

from dataclasses import dataclass, field

from gpuyard.insight.bars import Bars
from gpuyard.insight.curves import Curves, Point
from gpuyard.insight.epochs import Epochs
from gpuyard.insight.faults import fault_of
from gpuyard.insight.forms import read
from gpuyard.insight.lines import LineSplitter
from gpuyard.insight.pace import Pace
from gpuyard.insight.reading import Reading, Trust

__all__ = ["Point", "Progress", "ProgressReader"]

MAX_COUNT = 2**53  # steps; what JSON's readers and databases hold exactly


@dataclass(slots=True)
class Progress:
    """How far a training is, as its last line said. None is not known.

    `step` of `total` counts over all epochs; `epoch` of `epochs` is how many are done, fractional. `eta_s` is in
    seconds, `rate` in steps per second; `metrics` holds each one's last value.
    """

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    eta_s: float | None = None
    rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class ProgressReader:
    """Reads one attempt's output as it comes. Where the chunks are cut makes no difference.

    The position is that of the most trusted kind of line the log has shown so far, so that a program's own report is
    not overwritten by a bar; of one kind the last line counts, even if it goes back. A point's step is its line's own,
    or that position where the line is a bar's or has none. Values that are not finite are not kept. `fault` is the last
    fault (see `faults`) that the output told, or None.
    """

    def __init__(self) -> None:
        self._curves = Curves()
        self.progress = Progress(metrics=self._curves.last)
        self.fault: str | None = None
        self._lines = LineSplitter()
        self._epochs = Epochs()
        self._bars = Bars(self._epochs)
        self._pace = Pace()
        self._trust = min(Trust)
        self._announced: int | None = None  # total told apart from any step

    def feed(self, chunk: bytes, at: float) -> list[Point]:
        """The points that `chunk`, read at `at` (UTC seconds), completes.

        Give all chunks of a log that is read again one `at`: then no pace is measured from how fast it is read.
        """
        return self._read(self._lines.feed(chunk), at)

    def finish(self, at: float) -> list[Point]:
        """The points of a last line that was never ended, and those held back; after it comes no more output."""
        return self._read(self._lines.flush(), at) + self._curves.flush()

    def _read(self, lines: list[str], at: float) -> list[Point]:
        points: list[Point] = []
        for line in lines:
            self.fault = fault_of(line) or self.fault
            for reading in read(line):
                placed = self._place(reading)
                if placed is not None and max(placed.step or 0, placed.total or 0) <= MAX_COUNT:
                    self._move(placed, at)
                    points += self._points(placed, at)
        return points

    def _place(self, reading: Reading) -> Reading | None:
        """The reading as it stands in the whole training; None if it is not about the training."""
        if reading.label is not None:
            return self._bars.draw(reading)
        if reading.opens_epoch:
            self._bars.header()
            return self._epochs.header(reading)
        self._bars.printed(reading)
        return self._epochs.spread(reading) if reading.within_epoch else reading

    def _move(self, reading: Reading, at: float) -> None:
        progress = self.progress
        if reading.trust < self._trust:
            return
        progress.epoch = progress.epoch if reading.epoch is None else reading.epoch
        progress.epochs = reading.epochs or progress.epochs
        progress.eta_s = progress.eta_s if reading.eta_s is None else reading.eta_s
        if reading.step is None:
            self._announced = reading.total or self._announced
            progress.total = reading.total or progress.total
            return
        if reading.trust > self._trust:
            self._trust, self._pace = reading.trust, Pace()
            progress.total = self._announced
        drawn = reading.label is not None
        progress.step, progress.total = reading.step, reading.total or (None if drawn else progress.total)
        self._pace.see(reading.step, at)
        progress.rate = reading.rate or self._pace.rate
        if reading.eta_s is None:
            progress.eta_s = _eta(progress, self._pace.rate or reading.rate)

    def _points(self, reading: Reading, at: float) -> list[Point]:
        drawn, stepped = reading.label is not None, reading.step is not None
        own_step = stepped and not drawn and reading.trust > Trust.EPOCHS
        step = reading.step if own_step else self.progress.step
        points: list[Point] = []
        for name, value in reading.metrics.items():
            points += self._curves.show(name, step, value, at, drawn=drawn, stepped=stepped)
        return points


def _eta(progress: Progress, rate: float | None) -> float | None:
    if progress.step is None or progress.total is None or not rate:
        return None
    return max(progress.total - progress.step, 0) / rate
