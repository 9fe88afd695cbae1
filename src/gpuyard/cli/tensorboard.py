"""`gpuyard tensorboard`: a real TensorBoard over the curves of jobs, where they ran."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_json, say
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.jobs import Job

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
    link: Annotated[
        bool,
        typer.Option(
            "--link", help="Print a link for a browser, at the server's port for tools."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the event files of jobs in TensorBoard, side by side, until Ctrl-C.

    TensorBoard runs as a job on the node of the jobs, and its port is forwarded to
    this machine. It needs `tensorboard` in the Python of this shell.

    With --link, the server leads a browser there instead. The link signs one browser
    in, within a minute. TensorBoard then comes from the Python of one of your jobs, and
    ends after ten minutes without a look.
    """
    from gpuyard.cli.port_forward import PortPair, forward_ports
    from gpuyard.client import job_calls
    from gpuyard.domain.units import seconds
    from gpuyard.insight.boards import BOARD_LISTENS

    if as_json and not link:
        raise InvalidInputError.of("--json", "says nothing here", "add --link")
    if link:
        _print_link(jobs, as_json=as_json)
        return
    try:
        idle_s = seconds(idle)
    except ValueError as error:
        raise InvalidInputError.of("--idle", str(error)) from None
    with connect(patient=True) as client:
        handles = [client.job(name) for name in dict.fromkeys(jobs)]
        board = client.run(body_over(client, [one.info for one in handles], idle_s))
        try:
            remote = port_printed(board, BOARD_LISTENS, "TensorBoard")
            node = client.call(job_calls.forward_place(board.id, remote))
            count = "1 job" if len(handles) == 1 else f"{len(handles)} jobs"
            say(f"{count} in TensorBoard; open the address with http://")
            forward_ports(client, board.id, [PortPair(port, remote)], node)
        except KeyboardInterrupt:
            pass
        finally:
            end_job(board)


def body_over(client: "Client", jobs: "list[Job]", idle_s: float) -> dict[str, Any]:
    """The job that shows these, with the project that the server gives one by a link;
    RefusedError.
    """
    from gpuyard.client.bodies import current_folder, shell_environment
    from gpuyard.insight.boards import board_body, board_project

    workspaces = _workspaces(client, jobs)
    here = (shell_environment(), current_folder())
    body = board_body(jobs, idle_s, *here, workspaces=workspaces)
    me = client.who_am_i()
    private = {project.name for project in client.projects() if project.private}

    def may_submit(project: str | None) -> bool:
        return me.projects.get(project or "", me.elsewhere).submits

    if project := board_project(jobs, private, may_submit):
        body["project"] = project
    return body


def _workspaces(client: "Client", jobs: "list[Job]") -> dict[str, str]:
    """The folders of workspaces by their keys, if one of these jobs has one: the server
    measures all of them for that.
    """
    from gpuyard.client import calls
    from gpuyard.domain.workspaces import workspace_key
    from gpuyard.insight.boards import workspace_of

    if not any(map(workspace_of, jobs)):
        return {}
    listed = client.call(calls.listing("workspaces"))
    return {workspace_key(one["project"], one["name"]): one["path"] for one in listed}


def _print_link(jobs: list[str], *, as_json: bool) -> None:
    from gpuyard.client import job_calls

    with connect(start=False, patient=True) as client:
        url = client.call(job_calls.tensorboard(jobs))
    if as_json:
        print_json({"url": url})
    else:
        typer.echo(url)


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
