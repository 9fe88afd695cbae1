"""Reads how far a program is, and the series of its metrics, from the bytes that it
prints.
"""

from dataclasses import dataclass, field

from gpuyard.insight.bars import Bars
from gpuyard.insight.curves import Curves, MetricPoint
from gpuyard.insight.epochs import Epochs
from gpuyard.insight.faults import fault_of
from gpuyard.insight.forms import read
from gpuyard.insight.gpu_use import no_gpu_sign
from gpuyard.insight.lines import LineSplitter
from gpuyard.insight.reading import Confidence, Reading
from gpuyard.insight.restarts import Restarts
from gpuyard.insight.run_health import not_finite_loss
from gpuyard.insight.step_rate import StepRate
from gpuyard.insight.tables import Tables
from gpuyard.insight.tracker_links import TrackerLink, TrackerLinks
from gpuyard.insight.wrapped import WrappedBar

__all__ = ["MetricPoint", "ProgressReader", "TrainingProgress"]

# A program says at its start that it found no GPU.
_LINES_ABOUT_GPUS = 2000
MAX_COUNT = 2**53  # steps that JSON readers and databases store exactly


@dataclass(slots=True)
class TrainingProgress:
    """How far a training is, by its last line. None means unknown.

    `step` of `total` counts over all epochs; `epoch` of `epochs` is how many are done,
    as a fraction. `eta_s` is in seconds, `rate` in steps per second; `metrics` holds
    the last value of each. `links` are the pages of trackers that show it.
    """

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    eta_s: float | None = None
    rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    links: list[TrackerLink] = field(default_factory=list[TrackerLink])


class ProgressReader:
    """Reads one attempt's output as it comes. The result does not depend on where the
    chunks are cut.

    The position comes from the most trusted kind of line in the log so far, so that a
    bar does not overwrite a program's own report. Of one kind the last line counts,
    even if it goes back. The step of a point is its line's own, or that position if the
    line is a bar or has no step. Values that are not finite are dropped. `fault` is the
    last fault (see `faults`) in the output, or None; `no_gpu` are the words that
    say that the program found no GPU (see `gpu_use`), or None; `not_finite` says which
    loss was no number first ("loss is nan at step 120"), or None.
    """

    def __init__(self) -> None:
        self._curves = Curves()
        self._links = TrackerLinks()
        self.progress = TrainingProgress(
            metrics=self._curves.last, links=self._links.found
        )
        self.fault: str | None = None
        self.no_gpu: str | None = None
        self.not_finite: str | None = None
        self._lines_about_gpus = _LINES_ABOUT_GPUS
        self._lines = LineSplitter()
        self._tables = Tables()
        self._wrapped = WrappedBar()
        self._epochs = Epochs()
        self._bars = Bars(self._epochs)
        self._restarts = Restarts()
        self._step_rate = StepRate()
        self._confidence = min(Confidence)
        self._announced_total: int | None = None  # printed without a step

    def feed(self, chunk: bytes, at: float) -> list[MetricPoint]:
        """The points that `chunk`, read at `at` (UTC seconds), completes.

        If a log is read again, give all its chunks the same `at`: then the speed of the
        reading is not taken for the speed of the training.
        """
        return self._read(self._lines.feed(chunk), at)

    def finish(self, at: float) -> list[MetricPoint]:
        """The points of an unfinished last line, and those held back; call it after the
        last output.
        """
        return self._read(self._lines.flush(), at) + self._curves.flush()

    def _read(self, lines: list[str], at: float) -> list[MetricPoint]:
        self._look_for_gpus(lines)
        points: list[MetricPoint] = []
        for line in lines:
            self.fault = fault_of(line) or self.fault
            self._links.look(line)
            for reading in self._readings(line):
                placed = self._place(reading)
                if placed is None:
                    continue
                if max(placed.step or 0, placed.total or 0) <= MAX_COUNT:
                    self._move(placed, at)
                    points += self._points(placed, at)
            if self.not_finite is None:
                self._look_for_loss(line)
        return points

    def _look_for_loss(self, line: str) -> None:
        loss = not_finite_loss(line)
        if loss is not None:
            step = self.progress.step
            self.not_finite = loss if step is None else f"{loss} at step {step}"

    def _look_for_gpus(self, lines: list[str]) -> None:
        for line in lines[: self._lines_about_gpus]:
            self.no_gpu = self.no_gpu or no_gpu_sign(line)
        self._lines_about_gpus = max(self._lines_about_gpus - len(lines), 0)

    def _readings(self, line: str) -> list[Reading]:
        if self._wrapped.bar is not None:
            continued = self._wrapped.continued(line)
            if continued is not None:
                return continued
        rows = self._tables.read(line)
        if rows is not None:
            return rows
        readings = read(line)
        if readings:
            self._wrapped.note(line, readings)
        return readings

    def _place(self, reading: Reading) -> Reading | None:
        """The reading counted over the whole training; None if it is not about the
        training.
        """
        if reading.label is not None:
            return self._bars.draw(reading)
        if reading.opens_epoch:
            self._bars.header()
            return self._epochs.header(reading)
        self._bars.printed(reading)
        if reading.within_epoch:
            return self._epochs.spread(reading)
        if reading.confidence is not Confidence.GUESS:
            return reading
        epoch = self._epochs.index if reading.epoch is None else reading.epoch
        return self._restarts.count_on(reading, epoch)

    def _move(self, reading: Reading, at: float) -> None:
        progress = self.progress
        if reading.confidence < self._confidence:
            return
        progress.epoch = progress.epoch if reading.epoch is None else reading.epoch
        progress.epochs = reading.epochs or progress.epochs
        progress.eta_s = progress.eta_s if reading.eta_s is None else reading.eta_s
        if reading.step is None:
            self._announced_total = reading.total or self._announced_total
            progress.total = reading.total or progress.total
            return
        if reading.confidence > self._confidence:
            self._confidence = reading.confidence
            self._step_rate = StepRate()
            progress.total = self._announced_total
        drawn = reading.label is not None
        progress.step = reading.step
        progress.total = reading.total or (None if drawn else progress.total)
        is_guess = reading.confidence is Confidence.GUESS
        if is_guess and (progress.total or reading.step) < reading.step:
            progress.total = None  # it was that of an epoch
        self._step_rate.see(reading.step, at)
        progress.rate = reading.rate or self._step_rate.rate
        if reading.eta_s is None:
            progress.eta_s = _eta(progress, self._step_rate.rate or reading.rate)

    def _points(self, reading: Reading, at: float) -> list[MetricPoint]:
        drawn = reading.label is not None
        stepped = reading.step is not None or reading.is_result
        own_step = (
            reading.step is not None
            and not drawn
            and reading.confidence > Confidence.EPOCHS
        )
        step = reading.step if own_step else self.progress.step
        points: list[MetricPoint] = []
        for name, value in reading.metrics.items():
            points += self._curves.show(
                name, step, value, at, drawn=drawn, stepped=stepped
            )
        return points


def _eta(progress: TrainingProgress, rate: float | None) -> float | None:
    if progress.step is None or progress.total is None or not rate:
        return None
    return max(progress.total - progress.step, 0) / rate
