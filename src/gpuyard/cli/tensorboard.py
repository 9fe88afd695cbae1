"""`gpuyard tensorboard`: a real TensorBoard over the curves of jobs, where they ran."""

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.output import say
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.jobs import Job

_PROGRAM = "tensorboard_program.py"
# The folder may be somebody else's: nothing in it is imported.
START = "import sys; sys.path[:] = filter(None, sys.path); exec(sys.stdin.read())"
_READY = "TensorBoard listens on port "
_NAME = "tensorboard"
LocalPort = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="The port on this machine; 0 for any free one."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tensorboard)


def tensorboard(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB…", help="Ids or names.", autocompletion=suggest.jobs
        ),
    ],
    port: LocalPort = 6006,
    idle: Annotated[
        str, typer.Option(help="End it after so long without a browser.")
    ] = "30m",
) -> None:
    """Show the event files of jobs in TensorBoard, side by side, until Ctrl-C.

    TensorBoard runs as a job in the folder of the jobs, and its port is forwarded to
    this machine. It needs `tensorboard` in the Python of this shell.
    """
    from gpuyard.cli.port_forward import PortPair, forward_ports
    from gpuyard.client import job_calls
    from gpuyard.domain.units import seconds

    try:
        idle_s = seconds(idle)
    except ValueError as error:
        raise InvalidInputError.of("--idle", str(error)) from None
    with connect(patient=True) as client:
        handles = [client.job(name) for name in dict.fromkeys(jobs)]
        board = client.run(board_body([h.info for h in handles], idle_s))
        try:
            remote = port_printed(board, _READY, "TensorBoard")
            node = client.call(job_calls.forward_place(board.id, remote))
            count = "1 job" if len(handles) == 1 else f"{len(handles)} jobs"
            say(f"{count} in TensorBoard; open the address with http://")
            forward_ports(client, board.id, [PortPair(port, remote)], node)
        except KeyboardInterrupt:
            pass
        finally:
            end_job(board)


def board_body(jobs: Sequence["Job"], idle_s: float) -> dict[str, Any]:
    """The job that runs TensorBoard over these jobs; RefusedError for one that has not
    begun, or that ran in a container.
    """
    from gpuyard.client.bodies import shell_environment

    words: list[str] = []
    folders: list[str] = []
    for job in jobs:
        if job.started_at is None:
            raise RefusedError(f"{job.name} has not begun.", "Wait until it runs.")
        spec: dict[str, Any] = job.spec or {}
        workdir = spec.get("workdir")
        if not workdir or spec.get("image"):
            fault = f"{job.name} has no folder on a node: it runs in a container."
            raise RefusedError(fault, "Copy its event files, and show them yourself.")
        end = "" if job.ended_at is None else str(job.ended_at)
        folders.append(str(workdir))
        label = f"{job.name}-{job.id[-6:]}".replace("/", "-")
        words += [label, str(workdir), str(job.started_at), end]
    program = resources.files("gpuyard.cli").joinpath(_PROGRAM).read_text()
    return {
        "name": _NAME,
        "command": ["python3", "-c", START, str(idle_s), *words],
        "stdin": program,
        "workdir": folders[0],
        "environment": shell_environment(),
        "resources": {"cpus": 1, "gpus": 0},
        "live": True,
    }


def port_printed(job: "JobHandle", words: str, what: str) -> int:
    """The port that a job prints behind these words; RefusedError with its last line if
    it ends before.
    """
    last = ""
    for line in job.logs():
        if line.startswith(words):
            return int(line.removeprefix(words))
        last = line.strip() or last
    raise RefusedError(f"{what} did not start: {last or job.refresh().reason}")


def end_job(job: "JobHandle") -> None:
    """End a job, unless it has ended."""
    from gpuyard.domain.errors import GpuyardError

    try:
        job.cancel()
    except GpuyardError:
        return  # it has ended
