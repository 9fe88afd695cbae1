"""One group in a process of its own: `python -m benchmarks.one GROUP SCALE` prints its
figures as JSON, one a line.
"""

import importlib
import json
import sys
from dataclasses import asdict

# A module called http would stand before Python's own wherever a benchmark is run as a
# script.
MODULES = {
    "http": "over_http",
    "studies-results": "studies_results",
    "external-queues": "external_queues",
    "studies-runtime": "studies_runtime",
}

if __name__ == "__main__":
    group, scale = sys.argv[1:]
    for figure in importlib.import_module(
        f"benchmarks.{MODULES.get(group, group)}"
    ).measure(float(scale)):
        print(json.dumps(asdict(figure)), flush=True)
