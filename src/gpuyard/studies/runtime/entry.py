# pyright: basic
"""Run one rank from the command line; every failure is reported."""

import os
import socket
import sys
import traceback
from pathlib import Path

from .errors import RunError
from .experiment import Experiment, read_experiment
from .launch import read_launch
from .outputs import RankReport, finalize_rank


def main(config: Path) -> int:
    """Run the rank that the environment names; return 0 when it succeeded."""
    return _leave(1 if attempt(config).error else 0)


def attempt(config: Path) -> RankReport:
    """Run the rank and return its report.

    The metrics are written whatever happens, if their path is known.
    """
    experiment: Experiment | None = None
    report = RankReport(0, socket.gethostname())
    try:
        launch = read_launch(os.environ)
        report.rank = launch.rank
        report.host = launch.host
        experiment = read_experiment(config)
        report.engine = experiment.engine
        # Late, so that what is wrong with the configuration is told where torch is
        # missing too.
        from .rank import run_rank

        run_rank(experiment, launch, report)
    except RunError as error:
        report.error = str(error)
    except Exception as error:  # noqa: BLE001  # a peer that died raises all kinds of things here
        traceback.print_exc()
        report.error = f"{type(error).__name__}: {error}"
    if report.error:
        sys.stderr.write(f"rank {report.rank}: {report.error}\n")
    if experiment is not None:
        finalize_rank(experiment.metrics_path(report.rank), report)
    return report


def _leave(code: int) -> int:
    """Disconnect from the other ranks.

    Rank 0 holds the store through which they meet, so it waits until all are done.
    After a failure the other ranks may be gone, so the process just ends.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return code
    if code == 0:
        try:
            distributed.barrier()
            distributed.destroy_process_group()
            return code
        except RuntimeError as error:
            sys.stderr.write(f"another rank left early: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
