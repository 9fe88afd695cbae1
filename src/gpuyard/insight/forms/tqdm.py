"""tqdm, which most programs draw.

A line: `Epoch 0:  50%|███  | 2/4 [00:01<00:01, 1.9it/s, loss=0.03]`.

With no total it draws `12it [00:03, 3.9it/s]`. Bars that count bytes are transfers and
only log lines.
"""

import re

from gpuyard.insight.forms.pairs import measures
from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading, seconds

_SCALED = rf"{COUNT}(?:\.\d{{1,9}})?[kMGTP]?"
_BAR = re.compile(
    r"(?P<label>.*?)(?:\d{1,3}%)?\|[^|]*\|"
    rf" *(?P<step>{_SCALED})/(?P<total>{_SCALED}|\?) *\[(?P<state>[^\]]*)\]"
)
_UNSIZED = re.compile(
    rf"(?:(?P<label>.*): )?(?P<step>{_SCALED})(?P<unit> ?[^\W\d]+)"
    r" \[(?P<state>[^\]]*)\]"
)
_STATE = re.compile(
    r"[\d:]+(?:<(?P<left>[\d:?]+))?, *(?P<rate>[^,\s]+)(?:, *(?P<postfix>.*))?"
)
_RATE = re.compile(rf"({NUMBER})([kMGTP]?)(?:(s)/\S+|\S+/s)")
_EPOCH = re.compile(rf"\bepoch\W{{0,4}}({COUNT})(?: ?/ ?({COUNT}))?", re.IGNORECASE)
_METRIC = re.compile(
    r"(?:^|[,\s|])\s{0,8}([^\W\d][\w./@-]{0,63}(?: [^\W\d][\w./@-]{0,63})?)"
    rf" ?(?:=|:) ?({NUMBER})%?(?=[\s,|]|$)"
)
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}


def read(line: str) -> Reading | None:
    """A drawn bar; its metrics are the postfix's numbers and the label's measures."""
    bar = _match(line)
    state = _STATE.fullmatch(bar["state"]) if bar else None
    if not bar or not state or state["rate"].endswith("B/s"):
        return None
    label = (bar["label"] or "").strip().removesuffix(":")
    epoch = _EPOCH.search(label)
    total = bar.groupdict().get("total", "?")
    metrics = measures(label) if label else {}
    metrics |= {
        name.replace(" ", "_"): float(value)
        for name, value in _METRIC.findall(state["postfix"] or "")
    }
    metrics.pop("v_num", None)  # Lightning's number of the run
    return Reading(
        step=_count(bar["step"]),
        total=None if total == "?" else _count(total),
        epoch=float(epoch[1]) if epoch else None,
        epochs=int(epoch[2]) if epoch and epoch[2] else None,
        rate=_rate(state["rate"]),
        eta_s=seconds(state["left"] or "?"),
        metrics=metrics,
        confidence=Confidence.BAR,
        label=label,
        within_epoch=epoch is not None,
    )


def end_of_bar(line: str) -> int:
    """Where the bar that `line` starts with ends; 0 if it starts with none."""
    bar = _match(line)
    return bar.end() if bar else 0


def _match(line: str) -> re.Match[str] | None:
    if "[" not in line or ("/s" not in line and "s/" not in line):
        return None
    return _BAR.match(line) or _UNSIZED.match(line)


def _count(text: str) -> int:
    """`12` or, as `unit_scale` has it, `2.00k`."""
    return round(float(text.rstrip("kMGTP")) * _SCALE.get(text[-1], 1))


def _rate(text: str) -> float | None:
    """Steps per second of `1.9it/s` or, below one per second, `1.2s/it`; None for
    `?it/s`.
    """
    found = _RATE.fullmatch(text)
    if not found:
        return None
    value = float(found[1]) * _SCALE[found[2]]
    if value <= 0:
        return None
    return 1 / value if found[3] else value
