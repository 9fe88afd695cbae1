"""The forms of lines that training programs print, one module per family; each reads a line and knows nothing else."""

from collections.abc import Callable

from gpuyard.insight.forms import explicit, huggingface, keras, lightning, nanogpt, pairs, tqdm
from gpuyard.insight.reading import Reading

# The most particular form first: the first that reads a line is believed.
FORMS: tuple[Callable[[str], Reading | None], ...] = (
    nanogpt.read,
    huggingface.read,
    lightning.read,
    tqdm.read,
    keras.read,
    pairs.read,
)

MAX_LENGTH = 4096  # characters; nobody prints metrics in a longer line, and reading one would cost


def read(line: str) -> list[Reading]:
    """What `line` says about a training: nothing if it is only a log line.

    What a program prints while a tqdm bar stands on the terminal's line is glued to the bar; then it is two readings.
    """
    if len(line) > MAX_LENGTH:
        return []
    end = tqdm.end_of_bar(line)
    parts = (line[:end], line[end:]) if 0 < end < len(line) else (line,)
    return [reading for part in parts if (reading := _read(part)) is not None]


def _read(line: str) -> Reading | None:
    if explicit.MARK in line:
        return explicit.read(line)
    for form in FORMS:
        if (reading := form(line)) is not None:
            return reading
    return None
