"""The present epoch of a log, and the conversion of a step within an epoch to a step of
the whole training.
"""

from dataclasses import replace

from gpuyard.insight.reading import Confidence, Reading


class Epochs:
    """The epoch that is running, counted from 0, and the number of epochs.

    Programs number their epochs from 0 or from 1. If the form of the line does not
    decide that, the log's first number does: 0 means from 0 and 1 from 1. A higher one
    (of a resumed training) means from 1 if it is written as `3/10`, else from 0.
    """

    def __init__(self) -> None:
        self.index: int | None = None
        self._count: int | None = None
        self._first: int | None = None

    def enter(self, index: int, count: int | None) -> None:
        """Note that the epoch `index` (from 0) is running, of `count` epochs; None
        leaves their number as it is.
        """
        self.index = index
        self._count = count or self._count

    def header(self, reading: Reading) -> Reading:
        """The position that a header gives; it counts as the step if the log has no
        better one.
        """
        self._enter(reading)
        return replace(
            reading,
            step=self.index,
            total=self._count,
            epoch=self.index,
            epochs=self._count,
            confidence=Confidence.EPOCHS,
        )

    def spread(self, reading: Reading) -> Reading:
        """A reading within an epoch, converted: its step and total count over all
        epochs, and its epoch is a fraction.

        All epochs are assumed to be as long as this one. The line's `eta_s` is dropped,
        because it is that of the epoch, unless no epoch is known.
        """
        self._enter(reading)
        if self.index is None or reading.step is None:
            return reading
        length = reading.total
        if not length:
            return replace(reading, epoch=self.index, epochs=self._count, eta_s=None)
        return replace(
            reading,
            step=self.index * length + reading.step,
            total=self._count * length if self._count else None,
            epoch=self.index + reading.step / length,
            epochs=self._count,
            eta_s=None,
        )

    def _enter(self, reading: Reading) -> None:
        if reading.epoch is None:
            return
        number = int(reading.epoch)
        if self._first is None:
            self._first = min(number, 1) if number <= 1 or reading.epochs else 0
        first = self._first if reading.first_epoch is None else reading.first_epoch
        self.enter(max(number - first, 0), reading.epochs)
