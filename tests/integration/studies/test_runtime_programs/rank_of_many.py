"""`rank_of_many.py RUNTIME CONFIGS`: one rank that runs experiment after experiment, to
import torch only once.

CONFIGS is a file with the paths of `exp_config.json` files, one a line. Ends with 1
when one of them failed.
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import run_distributed_inference

run_distributed_inference.load_package()
entry = importlib.import_module("study_runtime.entry")
reports = [
    entry.attempt(Path(line)) for line in Path(sys.argv[2]).read_text().splitlines()
]
sys.exit(any(report.error for report in reports))
