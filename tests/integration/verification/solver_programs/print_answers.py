"""`print_answers.py SOLVER < WORK`: answers with fingerprints, followed by another engine.

WORK has `prompts`, `settings`, `engines` by name, and `runs` of [engine, engine that
follows, seed]. An engine with `bits` has its weights rounded to so many. Prints, for
each run, both files of fingerprints in base64, and whether the texts are equal.
"""

import importlib
import json
import os
import sys
from base64 import b64encode
from typing import Any

import torch


def quantise(model: Any, bits: int) -> None:
    """Round the weights of each row to whole steps, as cheap serving does."""
    most = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                step = weights.abs().amax(1, keepdim=True).clamp(min=1e-9) / most
                weights.copy_((weights / step).round() * step)


def main(work: dict[str, Any]) -> list[Any]:
    """The files of each run."""
    engines: Any = importlib.import_module(f"{solve.PACKAGE}.engines")
    packing: Any = importlib.import_module(f"{solve.PACKAGE}.engines.fingerprints")
    prompts = sorted(work["prompts"])
    loaded: dict[str, Any] = {}
    for name, engine in work["engines"].items():
        loaded[name] = engines.load(engine, work["settings"], len(prompts))
        if "bits" in engine:
            quantise(loaded[name]._model, engine["bits"])
    found: list[Any] = []
    for by, follower, seed in work["runs"]:
        said = loaded[by].fingerprints(prompts, seed, None)
        tokens = [[one.token for one in answer.prints] for answer in said]
        followed = loaded[follower].fingerprints(prompts, seed, tokens)
        files = [b64encode(packing.pack(one)).decode() for one in (said, followed)]
        same = [one.text for one in said] == [one.text for one in followed]
        found.append([*files, same])
    return [found, {name: engine.runtime() for name, engine in loaded.items()}]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[1])
    solve: Any = importlib.import_module("solve")
    solve.load_package()
    os.write(1, json.dumps(main(json.load(sys.stdin))).encode())
