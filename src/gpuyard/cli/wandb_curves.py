"""Sends the curves of a job to W&B: what it used, and what it printed or logged
elsewhere.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.cli.run_names import project_of
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.jobs import Job
    from gpuyard.insight.tracker_links import TrackerLink

Series = Mapping[str, Sequence[Mapping[str, Any]]]
_OF_WANDB = "wandb/"
# So that no name is one of the program's own.
_PREFIX = "gpuyard/"
_CLOCK = f"{_PREFIX}seconds"
_STEP = f"{_PREFIX}step"
_POINTS = 2000
_PAGE = re.compile(r"https?://[^/]+/([^/]+)/([^/]+)/runs/")
# What `wandb_program` leaves with if there is no such package.
_NO_WANDB = 90


def send_curves(job: "JobHandle", links: "Sequence[TrackerLink]") -> int:
    """Send the curves of a job that is over, with the key and settings of this shell;
    how many. RefusedError if that fails or it still runs, InvalidInputError without
    wandb.
    """
    info = job.info
    if not info.state.terminal:
        fault = f"{info.name} is not over, so its curves are not whole."
        raise RefusedError(fault, "Send them when it has ended.")
    document = document_of(info, links, job.metrics(points=_POINTS))
    if not document["axes"]:
        raise RefusedError(f"{info.name} has no curves that W&B does not have.")
    program = Path(__file__).with_name("wandb_program.py").read_text()
    done = _run(program, json.dumps(document))
    if done in (_NO_WANDB, None):
        remedy = "install it in the python3 of this shell (pip install wandb)"
        raise InvalidInputError.of("--send-curves", "needs wandb", remedy)
    if done:
        raise RefusedError(f"wandb left with {done}.", "See above what it said.")
    return len(document["axes"])


def _run(program: str, document: str) -> int | None:
    """The exit code of a program of Python; None without Python."""
    words = ["python3", "-c", program]
    try:
        done = subprocess.run(
            words, input=document, text=True, check=False, stdout=sys.stderr
        )
    except FileNotFoundError:
        return None
    return done.returncode


def document_of(
    job: "Job", links: "Sequence[TrackerLink]", series: Series
) -> dict[str, Any]:
    """What `wandb_program` sends: into the run that the output of the job names, or
    else into one of its own. Curves of W&B itself are left out.

    A curve whose points all have steps is drawn over `gpuyard/step`, another over the
    seconds since the job began.
    """
    began = job.started_at or job.created_at
    axes: dict[str, str] = {}
    rows: dict[tuple[float, Any], dict[str, Any]] = {}
    for name, points in series.items():
        if name.startswith(_OF_WANDB) or not points:
            continue
        has_steps = all(point["step"] is not None for point in points)
        axes[_PREFIX + name] = _STEP if has_steps else _CLOCK
        for point in points:
            step = point["step"] if has_steps else None
            row = rows.setdefault((point["at"], step), {})
            row[_CLOCK] = point["at"] - began
            row[_PREFIX + name] = point["value"]
            if has_steps:
                row[_STEP] = step
    ordered = sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    return {
        "run": _run_of(job, links),
        "clock": _CLOCK,
        "axes": axes,
        "rows": [row for _, row in ordered],
    }


def _run_of(job: "Job", links: "Sequence[TrackerLink]") -> dict[str, Any]:
    """The arguments of `wandb.init`. Only names are taken from an address: where the
    server is, this shell says.
    """
    pages = [link for link in links if link.tracker == "wandb"]
    place = _PAGE.match(pages[0].url) if len(pages) == 1 else None
    if place:
        entity, project = place.groups()
        known = {"entity": entity, "project": project, "id": pages[0].run}
        return {**known, "resume": "must"}
    project = os.environ.get("WANDB_PROJECT") or project_of(job.spec or {})
    return {"project": project, "name": job.name, "id": job.id, "resume": "allow"}
