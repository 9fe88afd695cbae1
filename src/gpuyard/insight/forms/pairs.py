"""The fallback: `key=value` and `key: value`, in whatever order a script prints them.

Read only if a key measures a training (a loss, an accuracy, …) or a step or epoch is
set beside other pairs, so that the log lines of other software stay log lines. In such
a line every pair with a bare number is a metric, unless its name is that of a time, a
size or a counter; a value with a unit is none.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from gpuyard.insight.forms import counters
from gpuyard.insight.names import is_measure, is_metric, is_scheduled
from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading

# timm: `Train: 0 [  50/62 ( 82%)]`, whose 0 is the epoch
_TRAIN_EPOCH = re.compile(rf"\btrain: {COUNT} (?=\[)")
# `accuracy: 9833/10000 (98%)`: the share counts
_SHARE = re.compile(rf"(?<=[:=] ){COUNT}/{COUNT} \((?={NUMBER}%\))")
_NUMBER = rf"(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d{{1,20}})?(?!\d)|{NUMBER})"
_LETTER = r"(?:[\w/@'-]|\.(?=[a-z]))"
_PAIR = re.compile(
    rf"(?<![\w.'])([a-z]{_LETTER}{{0,63}}(?: [a-z]{_LETTER}{{0,31}}){{0,3}})"
    rf"(\s?=\s?\[?|\s?:\s{{1,8}}|:|\s{{1,8}})({_NUMBER})%?(?![\w/:%]|\.\d)",
)
_DIVERGED = re.compile(r"loss\s?[=: ]\s?[-+]?(?:nan|inf)\b")
# Words that make a metric's name of two or three words, wherever they stand.
_QUALIFIERS = frozenset(
    {
        "train",
        "training",
        "val",
        "valid",
        "validation",
        "eval",
        "test",
        "avg",
        "average",
        "mean",
        "running",
        "total",
        "lm",
        "grad",
        "learning",
        "set",
    }
)
_PROSE = frozenset(
    {"a", "an", "and", "at", "by", "for", "from", "in", "info"}
    | {"is", "of", "on", "or", "the", "to", "warning", "with"}
)
# Lines whose values' names do not say what they are about: fairseq's, flair's.
_ABOUT = re.compile(
    r"\| (valid) on '|(?:^|\d )(?:(dev|test) {1,3}: |(epoch) \d{1,9} done: )"
)
# Lines that begin with what they are about: `val Loss: 0.18 Acc: 0.94`
_PHASE = re.compile(
    r"\W{0,4}(train|val|valid|validation|test|eval)\b(?: set| results){0,2}[\s:]{1,4}"
    r"(?=[a-z])"
)
_SPLIT = re.compile(r"train|val|test|dev")


def read(line: str) -> Reading | None:
    """The pairs of a line about training; with an epoch and no step, the epoch is the
    step.
    """
    lowered = line.lower()
    # Such a line repeats a value: `test loss 2.30 is the best so far, saving model`
    if not _may_be_about_training(lowered) or "best so far" in lowered:
        return None
    position = counters.position(line)
    pairs = list(_pairs(_plain(lowered)))
    # A diverged training prints no numbers any more, but still how far it is.
    is_stepped = position.step is not None
    diverged = is_stepped and _DIVERGED.search(lowered) is not None
    has_measure = any(is_measured for _, _, is_measured in pairs)
    is_said_beside = bool(pairs) and position.is_said
    if not (diverged or has_measure or is_said_beside):
        return None
    return _reading(position, _named_after_line(lowered, pairs, position))


def _reading(position: counters.Position, metrics: dict[str, float]) -> Reading:
    """What counts least often is the step if the line has no step of its own."""
    step = position.step
    total = position.total
    confidence = Confidence.GUESS
    if step is None and position.epoch is not None:
        step = position.epoch
        total = position.epochs
        confidence = Confidence.EPOCHS
    elif step is None and position.episode is not None:
        step = position.episode
        total = position.episodes
    is_within = position.step is not None and position.total is not None
    return Reading(
        step=step,
        total=total,
        epoch=None if position.epoch is None else float(position.epoch),
        epochs=position.epochs,
        metrics=metrics,
        confidence=confidence,
        within_epoch=position.epoch is not None and is_within,
        first_epoch=0 if position.from_zero else None,
    )


def _plain(lowered: str) -> str:
    """A line without what would be taken for a pair, or not be."""
    if "train: " in lowered:
        lowered = _TRAIN_EPOCH.sub("", lowered)
    if "%)" in lowered:
        lowered = _SHARE.sub("", lowered)
    return lowered.replace("avg. ", "avg ")


def _may_be_about_training(lowered: str) -> bool:
    """A quick check of every line of every log: one without any of these words is not
    parsed.
    """
    return (
        "loss" in lowered
        or "step" in lowered
        or "epoch" in lowered
        or "iter" in lowered
        or "episode" in lowered
        or "acc" in lowered
        or "perplexity" in lowered
        or "ppl" in lowered
        or "reward" in lowered
        or "bleu" in lowered
        or "f1" in lowered
        or "auc" in lowered
        or "mse" in lowered
        or "mae" in lowered
        or "iou" in lowered
    )


def measures(text: str) -> dict[str, float]:
    """The pairs of `text` that measure a training, by name."""
    return {
        name: value for name, value, is_measured in _pairs(text.lower()) if is_measured
    }


def _pairs(lowered: str) -> Iterator[tuple[str, float, bool]]:
    """Name, value and whether it measures a training, of each pair that may be a
    metric.
    """
    has_cells = lowered.count("|") > 1
    for found in _PAIR.finditer(lowered):
        phrase, separator, value = found.groups()
        in_cell = has_cells and lowered[: found.start()].rstrip().endswith("|")
        is_written_as_pair = in_cell or "=" in separator or ": " in separator
        name = _name(phrase, is_whole=is_written_as_pair)
        is_measured = is_measure(name)
        is_expected = is_measured or is_scheduled(name)
        is_pair = is_expected or (is_written_as_pair and "[" not in separator)
        if is_pair and is_metric(name):
            yield name, float(value.replace(",", "")), is_measured


@lru_cache(1024)
def _name(phrase: str, *, is_whole: bool) -> str:
    """The metric's name in the words before a value.

    All of up to three words (`is_whole`), which then begin after a number or a
    separator; else the last word with the qualifiers before it: `val loss`.
    """
    words = phrase.removesuffix(" is").split(" ")
    if is_whole and len(words) <= 3 and not _PROSE.intersection(words):
        return "_".join(words)
    first = len(words) - 1
    while first > 0 and words[first - 1] in _QUALIFIERS:
        first -= 1
    return "_".join(words[first:])


def _named_after_line(
    lowered: str, pairs: list[tuple[str, float, bool]], position: counters.Position
) -> dict[str, float]:
    """The pairs as metrics. Where only the line says what they are about, so do their
    names then: `valid_loss`.
    """
    about = None
    if " : " in lowered or "| valid on" in lowered or "done: " in lowered:
        about = _ABOUT.search(lowered)
    if about is not None:
        prefix = f"{about[1] or about[2] or about[3]}_"
        return {
            name
            if name.startswith(prefix) or is_scheduled(name)
            else prefix + name: value
            for name, value, _ in pairs
        }
    phase = _PHASE.match(lowered)
    is_counted = position.step is not None or position.epoch is not None
    if phase is None or (is_counted and phase[1] == "train"):
        return {name: value for name, value, _ in pairs}
    return {
        f"{phase[1]}_{name}"
        if is_measured and _SPLIT.search(name) is None
        else name: value
        for name, value, is_measured in pairs
    }
