"""Sends curves to W&B with its own package, which this Python has.

It reads a document from its standard input: `run` are arguments of `wandb.init`, `axes`
names the axis of each curve, and `rows` are what is logged, in order. A row whose
`clock` is not above that of the run was sent before, and is left out.
"""

import importlib
import json
import sys
from typing import Any

NO_WANDB = 90

try:
    wandb: Any = importlib.import_module("wandb")
except ImportError:
    sys.exit(NO_WANDB)

document = json.load(sys.stdin)
clock = document["clock"]
run = wandb.init(**document["run"])
for name, axis in document["axes"].items():
    run.define_metric(name, step_metric=axis)
sent_until = run.summary.get(clock)
for row in document["rows"]:
    if sent_until is None or row[clock] > sent_until:
        run.log(row)
run.finish()
