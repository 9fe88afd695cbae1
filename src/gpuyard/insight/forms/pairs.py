"""The fallback: `key=value` and `key: value`, in whatever order a script prints them.

Read only if a key measures a training (a loss, an accuracy, …) or a step or epoch is
set beside other pairs, so that the log lines of other software stay log lines. In such
a line every pair with a bare number is a metric; a value with a unit is not.
"""

import re
from collections.abc import Iterator

from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading

# A quick check for every line of every log: a line without any of these is not parsed.
_WORDS = (
    "loss",
    "acc",
    "epoch",
    "step",
    "iter",
    "perplexity",
    "ppl",
    "reward",
    "bleu",
    "f1",
    "auc",
    "mse",
    "mae",
    "iou",
)

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
_BRACKET = re.compile(rf"(\[)\s{{0,9}}({COUNT})/({COUNT})\b")
_PAIR = re.compile(
    r"(?<![\w.])"
    r"(?:(train|training|val|valid|validation|eval|test|avg|average|mean|running|total|lm|grad|learning)["
    r" _])?"
    rf"([a-z][\w/@-]{{0,63}})(\s?=\s?|\s?:\s{{1,8}}|:|\s{{1,8}})({NUMBER})%?(?![\w/:%]|\.\d)",
    re.IGNORECASE,
)
_MEASURE = re.compile(
    r"(?:^|[_/-])(?:loss|nll|acc|accuracy|top\d|ppl|perplexity|reward|bleu|f1|auc|mse|rmse|mae|iou|miou)(?:$|[_/@\d-])"
)
_DIVERGED = re.compile(r"loss\s?[=: ]\s?[-+]?(?:nan|inf)\b")
_SETTING = re.compile(r"weight|coef|scale|threshold|target")
_POSITION = re.compile(r"(?:^|_)(?:epochs?|steps?|iter|iteration|batch)$")
_LABELS = frozenset(
    {
        "pid",
        "port",
        "rank",
        "local_rank",
        "seed",
        "device",
        "gpu",
        "cuda",
        "node",
        "worker",
        "line",
        "v_num",
    }
)


def read(line: str) -> Reading | None:
    """The pairs of a line about training; with an epoch and no step, the epoch is the
    step.
    """
    lowered = line.lower()
    if not any(word in lowered for word in _WORDS):
        return None
    epoch = _EPOCH.search(line)
    step = _STEP.search(line)
    pairs = list(_pairs(lowered))
    metrics = {name: value for name, value, _ in pairs}
    # A diverged training prints no numbers any more, but still how far it is.
    diverged = step is not None and _DIVERGED.search(lowered) is not None
    has_measure = any(is_measure for _, _, is_measure in pairs)
    is_set_beside = bool(metrics) and _is_set(epoch, step)
    if not (diverged or has_measure or is_set_beside):
        return None
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


def measures(text: str) -> dict[str, float]:
    """The pairs of `text` that measure a training, by name."""
    return {
        name: value for name, value, is_measure in _pairs(text.lower()) if is_measure
    }


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
    for which, key, separator, value in _PAIR.findall(lowered):
        name = f"{which}_{key}" if which else key
        is_measure = _MEASURE.search(key) is not None and not _SETTING.search(key)
        written_as_pair = "=" in separator or (":" in separator and separator != ":")
        is_metric = name not in _LABELS and not _POSITION.search(key)
        if is_metric and (is_measure or written_as_pair):
            yield name, float(value), is_measure
