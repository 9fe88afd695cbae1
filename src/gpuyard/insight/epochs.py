"""Which epoch a log is in, and a step within an epoch as a step of the whole training."""

from dataclasses import replace

from gpuyard.insight.reading import Reading, Trust


class Epochs:
    """The epoch that is running, counted from 0, and how many there will be.

    Programs number their epochs from 0 or from 1. Where the form of the line does not fix it, the log's first number
    does: 0 and 1 stand for themselves, a higher one (a resumed training) counts from 1 if it comes as `3/10`, else
    from 0.
    """

    def __init__(self) -> None:
        self.index: int | None = None
        self._count: int | None = None
        self._first: int | None = None

    def enter(self, index: int, count: int | None) -> None:
        """The epoch `index`, from 0, is running; `count` None leaves their number as it was."""
        self.index = index
        self._count = count or self._count

    def header(self, reading: Reading) -> Reading:
        """The position that a header gives; it counts as the step of a log that has no better one."""
        self._enter(reading)
        return replace(
            reading, step=self.index, total=self._count, epoch=self.index, epochs=self._count, trust=Trust.EPOCHS
        )

    def spread(self, reading: Reading) -> Reading:
        """A reading within an epoch, with its step and total counted over all epochs and its epoch as a fraction.

        Every epoch is taken to be as long as this one. The line's `eta_s` is dropped, being the epoch's, unless no
        epoch is known.
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
