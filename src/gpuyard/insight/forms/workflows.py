"""Programs that run other work, and say how much of it is done.

Snakemake's `2 of 7 steps (29%) done`; Optuna's `Trial 2 finished with value: 0.91 and
parameters: {'lr': 0.01}. Best is trial 0 with value: 0.95.`
Hydra numbers the runs of a sweep: `[HYDRA] 	#4 : lr=0.1`.
"""

import re

from gpuyard.insight.reading import COUNT, NUMBER, Confidence, Reading

_STEPS_DONE = re.compile(rf"({COUNT}) of ({COUNT}) steps \({COUNT}%\) done")
_TRIAL = re.compile(
    rf"\bTrial ({COUNT}) finished with values?: (\[[^\]]{{1,400}}\]|{NUMBER}) and param"
)
_BEST = re.compile(rf" Best is trial {COUNT} with value: ({NUMBER})")
_RUN = re.compile(rf"\[HYDRA\] \t#({COUNT}) : ")
_NUMBER = re.compile(NUMBER)


def read(line: str) -> Reading | None:
    """How many steps are done, or what one trial has reached."""
    if " done" in line and (done := _STEPS_DONE.fullmatch(line)):
        return Reading(step=int(done[1]), total=int(done[2]), metrics={})
    if "[HYDRA]" in line and (run := _RUN.search(line)):
        # What the run itself prints tells more.
        return Reading(step=int(run[1]), metrics={}, confidence=Confidence.EPOCHS)
    if "Trial " not in line or not (trial := _TRIAL.search(line)):
        return None
    values = _NUMBER.findall(trial[2])
    metrics = {"value": float(values[0])}
    if trial[2].startswith("["):
        metrics = {f"value_{n}": float(value) for n, value in enumerate(values)}
    elif best := _BEST.search(line, trial.end()):
        metrics["best_value"] = float(best[1])
    return Reading(step=int(trial[1]), metrics=metrics)
