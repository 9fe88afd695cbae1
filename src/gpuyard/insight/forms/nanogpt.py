"""nanoGPT: `step 20: train loss 4.5142, val loss 4.5194`, `iter 10: loss 4.7847, time
54.74ms, mfu 0.02%`.

Neither line gives the number of iterations; the configurator prints it before,
`max_iters = 2000`.
"""

import re

from gpuyard.insight.reading import COUNT, NUMBER, Reading

_LOSS = rf"{NUMBER}|nan|inf"  # of a training that diverged
_STEP = re.compile(rf"step ({COUNT}): train loss ({_LOSS}), val loss ({_LOSS})")
_ITER = re.compile(
    rf"iter ({COUNT}): loss ({_LOSS}), time ({NUMBER})ms(?:, mfu ({NUMBER})%)?"
)
_ITERATIONS = re.compile(rf"(?:Overriding: )?max_iters = ({COUNT})\b")


def read(line: str) -> Reading | None:
    """An evaluation, an iteration or the number of iterations."""
    if line.startswith("iter "):
        return _iteration(line)
    if line.startswith("step ") and (found := _STEP.match(line)):
        step, train, val = found.groups()
        return Reading(
            step=int(step), metrics={"train_loss": float(train), "val_loss": float(val)}
        )
    if "max_iters = " in line and (found := _ITERATIONS.match(line)):
        return Reading(total=int(found[1]), metrics={})
    return None


def _iteration(line: str) -> Reading | None:
    found = _ITER.match(line)
    if not found:
        return None
    step, loss, milliseconds, mfu = found.groups()
    metrics = {"loss": float(loss)}
    # mfu is -100 until nanoGPT has timed enough iterations to know it
    if mfu is not None and float(mfu) >= 0:
        metrics["mfu"] = float(mfu)
    time_s = float(milliseconds) / 1000
    return Reading(
        step=int(step), rate=1 / time_s if time_s > 0 else None, metrics=metrics
    )
