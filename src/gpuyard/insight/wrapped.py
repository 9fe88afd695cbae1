"""Reads what Rich wraps: on a narrow terminal, the metrics of a Lightning bar continue
in the lines below it.
"""

import re
from dataclasses import replace

from gpuyard.insight.reading import NUMBER, Reading

_INDENT = " " * 20
_MAX_LENGTH = 4096  # characters that are kept of one bar's lines
_METRIC = re.compile(rf"(?<!\S)([^\s:…]{{1,64}}): ({NUMBER})(?!\S)")


class WrappedBar:
    """The bar that may continue in the next line (`bar`, None if there is none), and
    the text that continues it.
    """

    def __init__(self) -> None:
        self.bar: Reading | None = None
        self._text = ""

    def note(self, line: str, readings: list[Reading]) -> None:
        """Note a line with readings; if it is a Rich bar, it may continue below."""
        if "•" in line:
            self.bar = readings[0]
            self._text = line.rpartition("it/s")[2]

    def continued(self, line: str) -> list[Reading] | None:
        """The bar with the metrics that end in `line`; None if it does not continue
        the bar.

        A name that Rich cut off (`train_accuracy_of…`) is nobody's.
        """
        bar = self.bar
        if bar is None:
            return None
        is_too_long = len(self._text) + len(line) > _MAX_LENGTH
        if not line.startswith(_INDENT) or "•" in line or is_too_long:
            self.bar = None
            return None
        self._text = f"{self._text} {line.strip()}"
        metrics = {name: float(value) for name, value in _METRIC.findall(self._text)}
        new = {name: metrics[name] for name in metrics if name not in bar.metrics}
        if not new:
            return []
        self.bar = replace(bar, metrics={**bar.metrics, **new})
        return [replace(bar, metrics=new)]
