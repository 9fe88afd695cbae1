"""The forms of lines that training programs print, one module per family. Each module
reads single lines and keeps no state.
"""

from collections.abc import Callable

from gpuyard.insight.forms import (
    alone,
    boosting,
    evaluation,
    explicit,
    huggingface,
    keras,
    lightning,
    nanogpt,
    openmmlab,
    pairs,
    speech,
    tqdm,
    workflows,
)
from gpuyard.insight.reading import Reading

# The most specific form first: the first form that can read a line counts.
FORMS: tuple[Callable[[str], Reading | None], ...] = (
    nanogpt.read,
    huggingface.read,
    lightning.read,
    tqdm.read,
    keras.read,
    boosting.read,
    openmmlab.read,
    speech.read,
    evaluation.read,
    workflows.read,
    alone.read,
    pairs.read,
)

# Characters. Nobody prints metrics in a longer line, and to read one would cost time.
MAX_LENGTH = 4096


def read(line: str) -> list[Reading]:
    """The readings of `line`; none if it is only a log line.

    What a program prints while a tqdm bar is on the terminal's line is appended to the
    bar; then there are two readings.
    """
    if len(line) > MAX_LENGTH:
        return []
    end = tqdm.end_of_bar(line)
    parts = (line[:end], line[end:]) if 0 < end < len(line) else (line,)
    readings = [_read(part) for part in parts]
    return [reading for reading in readings if reading is not None]


def _read(line: str) -> Reading | None:
    if explicit.MARK in line:
        return explicit.read(line)
    for form in FORMS:
        reading = form(line)
        if reading is not None:
            return reading
    return None
