"""The fallback: `key=value` and `key: value`, in whatever order a script prints them.

Read only if a key measures a training (a loss, an accuracy, …) or a step or epoch is
set beside other pairs, so that the log lines of other software stay log lines. In such
a line every pair with a bare number is a metric, unless its name is that of a time, a
size or a counter; a value with a unit is none.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from gpuyard.insight.names import is_measure, is_metric, is_scheduled
from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading

_EPOCH = re.compile(
    rf"\bepoch\b([\s:=#(\[]{{0,4}})({COUNT})(?:\s?(?:/|of)\s?({COUNT}))?(?![\w.])",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:global[_ ]?step|train[_"
    rf" ]?step|step|iter|iteration|batch)\b([\s:=#(\[]{{0,9}})({COUNT})"
    rf"(?:\s{{0,9}}(?:/|of)\s{{0,9}}({COUNT}))?(?![\w.])",
    re.IGNORECASE,
)
# Not a date, `[05/18 10:12:51]`.
_BRACKET = re.compile(rf"(\[)\s{{0,9}}({COUNT})/({COUNT})\s{{0,9}}[\](]")
# fairseq: `epoch 001:    450 / 1891 loss=11.5`, and `num_updates 445` in other lines
_AFTER_EPOCH = re.compile(
    rf"\bepoch {COUNT}(:?\s{{1,9}})({COUNT}) / ({COUNT})(?= )", re.IGNORECASE
)
_UPDATES = re.compile(rf"\bnum_updates([ =])({COUNT})()(?![\w.])")
# clu, of JAX programs: `logging_writer.py:48] [400] train_loss=3.2`
_LONE = re.compile(rf"\] (\[)({COUNT})()\] (?=[\w/]+=)")
# llama2.c: `490 | loss 5.75 | lr 4.9e-05`
_LEADING = re.compile(rf"()({COUNT})() \| (?=loss )")
# Swin Transformer: `Train: [14/300][250/1251]`
_TWO_BRACKETS = re.compile(
    rf"\[ *({COUNT})/({COUNT})\]\[ *({COUNT})/({COUNT})\](?=\s|$)"
)
_NUMBER = rf"(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d{{1,20}})?(?!\d)|{NUMBER})"
_PAIR = re.compile(
    r"(?<![\w.'])([a-z][\w/@'-]{0,63}(?: [a-z][\w/@'-]{0,31}){0,3})"
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


def read(line: str) -> Reading | None:
    """The pairs of a line about training; with an epoch and no step, the epoch is the
    step.
    """
    lowered = line.lower()
    if not _may_be_about_training(lowered):
        return None
    both = _TWO_BRACKETS.search(line) if "][" in line else None
    epoch = _EPOCH.search(line)
    step = _step(line, has_epoch=epoch is not None)
    pairs = list(_pairs(lowered))
    # A diverged training prints no numbers any more, but still how far it is.
    diverged = step is not None and _DIVERGED.search(lowered) is not None
    has_measure = any(is_measured for _, _, is_measured in pairs)
    is_set_beside = bool(pairs) and _is_set(epoch, step)
    if not (diverged or has_measure or is_set_beside):
        return None
    metrics = _named_after_line(lowered, pairs)
    if both is not None:
        return _within(both, metrics)
    step = step or _BRACKET.search(line)
    number = float(epoch[2]) if epoch else None
    epochs = int(epoch[3]) if epoch and epoch[3] else None
    if step is None and epoch is not None:
        return Reading(
            step=int(epoch[2]),
            total=epochs,
            epoch=number,
            epochs=epochs,
            metrics=metrics,
            confidence=Confidence.EPOCHS,
        )
    total = int(step[3]) if step and step[3] else None
    return Reading(
        step=int(step[2]) if step else None,
        total=total,
        epoch=number,
        epochs=epochs,
        metrics=metrics,
        confidence=Confidence.GUESS,
        within_epoch=epoch is not None and total is not None,
    )


def _may_be_about_training(lowered: str) -> bool:
    """A quick check of every line of every log: one without any of these words is not
    parsed.
    """
    return (
        "loss" in lowered
        or "step" in lowered
        or "epoch" in lowered
        or "iter" in lowered
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


def _step(line: str, *, has_epoch: bool) -> re.Match[str] | None:
    """The match of a step: what stands before the number, it, and the total or ''."""
    step = None
    if has_epoch and " / " in line:
        step = _AFTER_EPOCH.search(line)
    step = step or _STEP.search(line)
    if step is None and "num_updates" in line:
        step = _UPDATES.search(line)
    if step is None and "] [" in line:
        step = _LONE.search(line)
    if step is None and " | loss " in line:
        step = _LEADING.match(line)
    return step


def measures(text: str) -> dict[str, float]:
    """The pairs of `text` that measure a training, by name."""
    return {
        name: value for name, value, is_measured in _pairs(text.lower()) if is_measured
    }


def _within(both: re.Match[str], metrics: dict[str, float]) -> Reading:
    """The reading of `[epoch/epochs][step/steps]`, which counts epochs from 0."""
    return Reading(
        step=int(both[3]),
        total=int(both[4]),
        epoch=float(both[1]),
        epochs=int(both[2]),
        metrics=metrics,
        confidence=Confidence.GUESS,
        within_epoch=True,
        first_epoch=0,
    )


def _is_set(*counters: re.Match[str] | None) -> bool:
    """True when one of the counters is written as a pair (`step=3`), not in prose
    (`Step 3`).
    """
    return any(
        found is not None and found[1].strip() in (":", "=") for found in counters
    )


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
    words = phrase.split(" ")
    if is_whole and len(words) <= 3 and not _PROSE.intersection(words):
        return "_".join(words)
    first = len(words) - 1
    while first > 0 and words[first - 1] in _QUALIFIERS:
        first -= 1
    return "_".join(words[first:])


def _named_after_line(
    lowered: str, pairs: list[tuple[str, float, bool]]
) -> dict[str, float]:
    """The pairs as metrics. Where only the line says what they are about, so do their
    names then: `valid_loss`.
    """
    about = None
    if " : " in lowered or "| valid on" in lowered or "done: " in lowered:
        about = _ABOUT.search(lowered)
    if about is None:
        return {name: value for name, value, _ in pairs}
    prefix = f"{about[1] or about[2] or about[3]}_"
    return {
        name if name.startswith(prefix) or is_scheduled(name) else prefix + name: value
        for name, value, _ in pairs
    }
