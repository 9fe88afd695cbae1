# pyright: basic, reportMissingImports=false
"""Profile a rank's first batch with torch.profiler.

The trace of a whole run would be too large to open.
"""

import contextlib
from collections.abc import Callable, Iterator

from .experiment import Experiment


@contextlib.contextmanager
def profiling(
    experiment: Experiment, rank: int, *, cuda: bool
) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each batch.

    Its first call writes `trace_rank_<rank>.json`, for Perfetto.
    """
    if not (experiment.profiling_enabled and experiment.profiler == "torch"):
        yield lambda: None
        return
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    running = [profile(activities=activities, record_shapes=True)]
    running[0].start()

    def after_batch() -> None:
        while running:
            profiler = running.pop()
            profiler.stop()
            experiment.profiling_dir.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(
                str(experiment.profiling_dir / f"trace_rank_{rank}.json")
            )

    try:
        yield after_batch
    finally:
        after_batch()
