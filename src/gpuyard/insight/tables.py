"""Reads tables, whose values get their names from lines above them: columns under a
header, and blocks with one value a line.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from gpuyard.insight.forms import MAX_LENGTH, tqdm
from gpuyard.insight.names import is_measure, is_metric
from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading

# The first column of a header: epoch, step, or the class of Ultralytics' validation.
_HEADER = re.compile(r" *(?:epoch|e|step|iter|class) {2,}\S", re.IGNORECASE)
# How a line of a table can start, other than a row under a header.
_STARTS = frozenset(" [|-EeSsIiCc")
_GAP = re.compile(r" {2,}")
_BAR = re.compile(r": +\d{1,3}% ?[|━╸─]")
# Ultralytics since 8.3.180 draws its own: `100% ━━━━ 8/8 3.1it/s 2.6s`
_OWN_BAR = re.compile(
    rf": +\d{{1,3}}% [━╸─]+ (?P<step>{COUNT})/(?P<total>{COUNT})"
    rf"(?: (?P<rate>{NUMBER})it/s)?"
)
_NUMBER = re.compile(NUMBER)
_COUNTED = re.compile(rf"({COUNT})(?:/({COUNT}))?")
# fastai without a terminal: `[0, 0.473, 0.334, 0.885, '00:12']`
_LIST = re.compile(rf"\[({COUNT}), ({NUMBER}(?:, {NUMBER})*), '\d{{1,3}}:[\d:]+'\]")

_BOX_ROW = re.compile(
    r"\| {1,64}([\w/.@-]{1,64}(?: [\w/.@-]{1,64}){0,4}) {0,64}"
    rf"\| {{1,64}}({NUMBER}) {{0,64}}\|"
)
_BOX_STEPS = ("total_timesteps", "TotalEnvInteracts", "timesteps_so_far")

_BLOCK_HEADS = (
    re.compile(rf"\[batch=({COUNT})/({COUNT})\]:"),  # Composer
    re.compile(rf"\s*Learning iteration ({COUNT})/({COUNT})"),  # rsl_rl
    re.compile(rf"\s*--> STEP: {COUNT}/{COUNT} -- GLOBAL_STEP: ({COUNT})()"),  # Coqui
)
_BLOCK_ROW = re.compile(
    rf"[\s|>]*([A-Za-z][\w /.@-]{{0,63}}): +({NUMBER})(?: +\(.*\))?"
)
_BLOCK_RULE = re.compile(r"[\s#=-]*|\s{0,64}[\w ]{1,64}: [^:]*")


class Tables:
    """The tables of one log."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._box: dict[str, float] = {}
        self._in_block = False

    def read(self, line: str) -> list[Reading] | None:
        """The readings of a line of a table; None if it belongs to none."""
        if len(line) > MAX_LENGTH:
            return None
        if self._in_block:
            row = self._block_row(line)
            if row is not None:
                return row
        first = line[0]
        if first not in _STARTS:
            return self._row(line) if self._columns else None
        if first == " " or first == "[":
            return self._headed(line, first)
        if first == "|":
            return self._box_row(line)
        if first == "-":
            return self._close_box() if self._box else None
        return self._header(line) if "  " in line and _HEADER.match(line) else None

    def _headed(self, line: str, first: str) -> list[Reading] | None:
        """The readings of a line that starts with a blank or a bracket."""
        if first == "[" and (found := _LIST.fullmatch(line)):
            return [_fastai(found)]
        if "[batch=" in line or "Learning iter" in line or "GLOBAL_STEP" in line:
            return self._block_head(line)
        if first == " " and _HEADER.match(line):
            return self._header(line)
        return self._row(line) if self._columns else None

    def _header(self, line: str) -> list[Reading] | None:
        """Note the names of the columns, if this is a header of metrics."""
        bar = _BAR.search(line)
        names = line[: bar.start()] if bar else line
        columns = [_column(name) for name in _GAP.split(names.strip())]
        lowered = [name.lower() for name in columns]
        if "gpu_mem" not in lowered and not any(map(_is_measured, lowered)):
            return None
        self._columns = columns
        return []

    def _row(self, line: str) -> list[Reading] | None:
        bar = _BAR.search(line)
        cells = line[: bar.start() if bar else None].split()
        if len(cells) != len(self._columns):
            return None
        metrics = dict(self._metrics(cells))
        if cells[0] == "all":
            return [Reading(metrics=metrics)]
        counted = _COUNTED.fullmatch(cells[0])
        if counted is None or not metrics:
            return None
        epoch = float(counted[1])
        epochs = int(counted[2]) if counted[2] else None
        if bar is not None:
            return _drawn(line, bar, epoch, epochs, metrics)
        if self._columns[1] == "#":  # spaCy's step
            if not cells[1].isdecimal():
                return None
            return [Reading(step=int(cells[1]), epoch=epoch, metrics=metrics)]
        is_step = self._columns[0].lower() in ("step", "iter")
        return [
            Reading(
                step=int(epoch),
                total=epochs,
                epoch=None if is_step else epoch,
                epochs=None if is_step else epochs,
                metrics=metrics,
                confidence=Confidence.GUESS if is_step else Confidence.EPOCHS,
            )
        ]

    def _metrics(self, cells: list[str]) -> Iterator[tuple[str, float]]:
        for name, cell in zip(self._columns[1:], cells[1:], strict=True):
            if name != "#" and is_metric(name) and _NUMBER.fullmatch(cell):
                yield name, float(cell)

    def _box_row(self, line: str) -> list[Reading] | None:
        """Keep a row of Stable-Baselines3 until its box is complete, because the step
        stands in its midst.
        """
        found = _BOX_ROW.fullmatch(line)
        if found is None:
            return None
        if len(self._box) < 100:
            self._box[found[1]] = float(found[2])
        return []

    def _close_box(self) -> list[Reading] | None:
        values = self._box
        self._box = {}
        for name in _BOX_STEPS:
            if name in values:
                step = int(values[name])
                metrics = {key: values[key] for key in values if _is_boxed(key)}
                return [Reading(step=step, metrics=metrics)]
        return None

    def _block_head(self, line: str) -> list[Reading] | None:
        for head in _BLOCK_HEADS:
            found = head.fullmatch(line)
            if found is not None:
                self._in_block = True
                total = int(found[2]) if found[2] else None
                return [Reading(step=int(found[1]), total=total, metrics={})]
        return None

    def _block_row(self, line: str) -> list[Reading] | None:
        found = _BLOCK_ROW.fullmatch(line)
        if found is not None:
            name = found[1].lower().replace(" ", "_")
            metrics = {name: float(found[2])} if is_metric(name) else {}
            return [Reading(metrics=metrics)]
        if _BLOCK_RULE.fullmatch(line):
            return []
        self._in_block = False
        return None


def _column(name: str) -> str:
    """`Box(P` and `mAP50-95)` without the bracket over several columns."""
    return name.rpartition("(")[2].rstrip(")").replace(" ", "_")


def _is_measured(name: str) -> bool:
    return is_measure(name) or name.startswith("map")


def _is_boxed(name: str) -> bool:
    return name not in _BOX_STEPS and name != "time_elapsed" and is_metric(name)


def _fastai(found: re.Match[str]) -> Reading:
    """The losses come first; no line tells the names of the metrics behind them."""
    values = [float(value) for value in found[2].split(", ")]
    names = ["train_loss", "valid_loss"]
    names += [f"metric_{number}" for number in range(1, len(values) - 1)]
    return Reading(
        step=int(found[1]),
        epoch=float(found[1]),
        metrics=dict(zip(names, values, strict=False)),
        confidence=Confidence.EPOCHS,
    )


def _drawn(
    line: str,
    bar: re.Match[str],
    epoch: float,
    epochs: int | None,
    metrics: dict[str, float],
) -> list[Reading] | None:
    """The reading of a row that a bar ends, as Ultralytics draws one for each batch."""
    reading = tqdm.read(line) or _own_bar(line, bar.start())
    if reading is None:
        return None
    return [
        replace(
            reading,
            epoch=epoch,
            epochs=epochs,
            metrics=metrics,
            label="epoch",
            within_epoch=True,
        )
    ]


def _own_bar(line: str, start: int) -> Reading | None:
    found = _OWN_BAR.match(line, start)
    if found is None:
        return None
    rate = float(found["rate"]) if found["rate"] else 0.0
    return Reading(
        step=int(found["step"]),
        total=int(found["total"]),
        rate=rate if rate > 0 else None,
        metrics={},
        confidence=Confidence.BAR,
    )
