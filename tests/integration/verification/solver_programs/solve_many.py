"""`solve_many.py SOLVER < ORDERS`: the answers to many orders, one after another in one
process; a list of maps.

What an engine imports takes seconds, and is imported once.
"""

import importlib
import json
import os
import sys
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    solve: Any = importlib.import_module("solve")
    solve.load_package()
    engines: Any = importlib.import_module(f"{solve.PACKAGE}.engines")
    found: list[dict[str, str]] = []
    for order in json.load(sys.stdin):
        engine = engines.load(order["engine"], order["settings"], len(order["prompts"]))
        found.append(
            dict(
                zip(
                    order["prompts"],
                    engine.answer(order["prompts"], order["seed"]),
                    strict=True,
                )
            )
        )
        engine.close()
    os.write(1, json.dumps(found).encode())
