"""Lightning's rich bar and its losses.

A line: `Epoch 1/1  ━━━━━ 4/4 0:00:00 • 0:00:00 437.20it/s train_loss: 0.035`.

Its tqdm bar is read by `tqdm`. Lightning counts epochs from 0 and prints the number of
the last, so `Epoch 1/1` is the second of two.
"""

import re

from gpuyard.insight.reading import COUNT, NUMBER, Reading, seconds

_BAR = re.compile(
    rf"(?P<label>[^━╸╺]*?)\s*[━╸╺]*\s+(?P<step>{COUNT})/(?P<total>{COUNT}|--)(?:\.0)?"
    rf" (?P<elapsed>[-\d:]+) • (?P<left>[-\d:]+) (?P<rate>{NUMBER})it/s(?P<metrics>.*)"
)
_EPOCH = re.compile(rf"Epoch ({COUNT})(?:/(-?{COUNT}))?")
_METRIC = re.compile(rf"(?<!\S)([^\s:]{{1,64}}): ({NUMBER})(?!\S)")


def read(line: str) -> Reading | None:
    """A drawn bar: the training's is labelled with the epoch, others `Validation`,
    `Testing` and so on.
    """
    if "•" not in line or not (bar := _BAR.match(line)):
        return None
    label = bar["label"].strip()
    epoch = _EPOCH.match(label)
    last = int(epoch[2] or -1) if epoch else -1
    rate = float(bar["rate"])
    metrics = {
        name: float(value)
        for name, value in _METRIC.findall(bar["metrics"])
        if name != "v_num"
    }
    return Reading(
        step=int(bar["step"]),
        total=None if bar["total"] == "--" else int(bar["total"]),
        epoch=float(epoch[1]) if epoch else None,
        epochs=last + 1 if last >= 0 else None,
        rate=rate if rate > 0 else None,
        eta_s=seconds(bar["left"]),
        metrics=metrics,
        label=label,
        within_epoch=epoch is not None,
        first_epoch=0,
    )
