"""`deepspeed_ranks.py RUNTIME CONFIGS`: as `rank_of_many.py`. Beside its metrics each
rank also leaves `buffers_RANK.json`, the types of its model's buffers by name.
"""

import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import run_distributed_inference

run_distributed_inference.load_package()
rank = importlib.import_module("study_runtime.rank")
entry = importlib.import_module("study_runtime.entry")


class WatchedEngine(rank.DeepSpeedEngine):
    """Tells of its buffers once the model is loaded."""

    def load(self) -> None:
        super().load()
        number = int(os.environ["RANK"])
        path = self._experiment.metrics_path(number).with_name(f"buffers_{number}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        types = {name: str(one.dtype) for name, one in self._model.named_buffers()}
        path.write_text(json.dumps(types))


rank.DeepSpeedEngine = WatchedEngine
reports = [
    entry.attempt(Path(line)) for line in Path(sys.argv[2]).read_text().splitlines()
]
sys.exit(any(report.error for report in reports))
