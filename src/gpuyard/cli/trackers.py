"""`gpuyard trackers`: the pages of W&B and MLflow that show a job, and the runs that
W&B has kept on this machine.
"""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.output import print_json, print_table, say
from gpuyard.cli.session import connect
from gpuyard.cli.wandb_curves import send_curves
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.domain.jobs import Job

_OFFLINE = "wandb/offline-run-*"
_DEPTHS = ("", "*/", "*/*/")
_MARK = ".synced"
# Whose jobs have no user: those of the owner of the instance, as in `gpuyard report`.
_OWNER = "owner"
# The clock of a file system may differ from that of the node by so much.
_SLACK_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(trackers)


def trackers(
    job: Reference,
    sync: Annotated[
        bool,
        typer.Option("--sync", help="Send the runs kept here, with `wandb sync`."),
    ] = False,
    curves: Annotated[
        bool,
        typer.Option(
            "--send-curves", help="Send to W&B what gpuyard has measured and read."
        ),
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(
            help="The user whose job it is; to send something of a job of somebody"
            " else."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the pages of W&B and MLflow that a job's output names, and the runs that W&B
    has kept in the folder of the job because it was offline.
    """
    from gpuyard.insight.event_files import PREFIX
    from gpuyard.insight.tracker_links import links_of

    with connect() as client:
        handle = client.job(job)
        links = links_of(handle.logs(follow=False))
        info = handle.info
        if sync or curves:
            refuse_job_of_others(info, user or client.who_am_i().user)
        sent = send_curves(handle, links) if curves else None
    offline = offline_runs(info)
    if as_json:
        print_json(
            {
                "curves_sent": sent,
                "links": [
                    {"tracker": link.tracker, "run": link.run, "url": link.url}
                    for link in links
                ],
                "offline": [str(folder) for folder in offline],
            }
        )
        return
    rows = [(link.tracker, link.run, link.url) for link in links]
    rows += [("wandb, offline", folder.name, str(folder)) for folder in offline]
    if any(name.startswith(PREFIX) for name in info.progress.metrics):
        rows.append(("tensorboard", "", f"gpuyard tensorboard {job}"))
    empty = "Its output names no page of W&B or MLflow, and no run was kept here."
    print_table(("TRACKER", "RUN", "WHERE"), rows, empty=empty)
    if sent is not None:
        say(f"{sent} curves are in W&B, or kept where this shell says.")
    if offline and sync:
        send_offline_runs(offline)
    elif offline:
        say(f"`gpuyard trackers {job} --sync` sends what was kept here.")


def offline_runs(job: "Job") -> list[Path]:
    """The folders of runs that W&B kept on this machine while the job ran, and that
    were not sent yet.
    """
    workdir = (job.spec or {}).get("workdir")
    if not isinstance(workdir, str) or job.started_at is None:
        return []
    end = job.ended_at
    found: list[Path] = []
    for depth in _DEPTHS:
        for folder in Path(workdir).glob(depth + _OFFLINE):
            files = list(folder.glob("*.wandb"))
            if not files or any(folder.glob(f"*{_MARK}")):
                continue
            written = files[0].stat().st_mtime
            is_later = end is not None and written > end + _SLACK_S
            if written >= job.started_at - _SLACK_S and not is_later:
                found.append(folder)
    return sorted(found)


def refuse_job_of_others(job: "Job", user: str | None) -> None:
    """What others have kept would be sent with the key of this shell."""
    whose = job.user or _OWNER
    if whose != (user or _OWNER):
        fault = f"{job.name} is a job of {whose}, and your key would send it."
        raise RefusedError(fault, f"Name the user: --user {whose}")


def send_offline_runs(folders: list[Path]) -> None:
    """Send them with `wandb sync`, and the key and settings of this shell.
    InvalidInputError without wandb, RefusedError if it fails.
    """
    words = ["wandb", "sync", *map(str, folders)]
    try:
        done = subprocess.run(words, check=False, stdout=sys.stderr)
    except FileNotFoundError:
        remedy = "install it here (pip install wandb)"
        raise InvalidInputError.of("--sync", "needs wandb", remedy) from None
    if done.returncode:
        raise RefusedError(
            f"wandb sync left with {done.returncode}.", "The runs stay where they are."
        )
