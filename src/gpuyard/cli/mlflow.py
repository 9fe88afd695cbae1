"""`gpuyard mlflow`: a server of MLflow for the jobs of a node, as a job itself."""

import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.output import say, short_id
from gpuyard.cli.session import connect
from gpuyard.cli.tensorboard import LocalPort, end_job, port_printed
from gpuyard.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle

_PROGRAM = "mlflow_program.py"
_READY = "MLflow listens on port "
_NAME = "mlflow"
_LABEL = "mlflow-port"
_LIVE = ("running", "assigned", "queued")
_PACKAGES = "mlflow\n"
_FOLDER = "~/.local/share/gpuyard/mlflow"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(mlflow)


def mlflow(
    port: LocalPort = 5000,
    node_port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, help="The port on the node, for the jobs there."
        ),
    ] = 5000,
    folder: Annotated[
        str, typer.Option(help="Where it keeps runs and models, on the node.")
    ] = _FOLDER,
    packages: Annotated[
        Path | None,
        typer.Option(help="A file that names the packages of the server."),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Leave the server running, and return."),
    ] = False,
) -> None:
    """Run a server of MLflow for the jobs of a node, and show it here until Ctrl-C.

    Jobs there use it with MLFLOW_TRACKING_URI, which the command prints. What they log
    stays in the folder for the next time. With -d the server goes on without the
    command, and a later `gpuyard mlflow` shows it again.
    """
    from gpuyard.cli.port_forward import PortPair, forward_ports
    from gpuyard.client import job_calls

    with connect(patient=True) as client:
        server = running_server(client, node_port)
        is_own = server is None
        if server is None:
            digest = _stored(client, packages)
            server = client.run(server_body(node_port, folder, digest))
        try:
            port_printed(server, _READY, "MLflow")
            say(f"for jobs there: export MLFLOW_TRACKING_URI={_address(node_port)}")
            if detach:
                say(f"it goes on: `gpuyard cancel {short_id(server.id)}` ends it")
                return
            node = client.call(job_calls.forward_place(server.id, node_port))
            forward_ports(client, server.id, [PortPair(port, node_port)], node)
        except KeyboardInterrupt:
            pass
        finally:
            if is_own and not detach:
                end_job(server)


def server_body(port: int, folder: str, packages: str) -> dict[str, Any]:
    """The job that runs the server; `packages`: the digest of the list of its
    packages.
    """
    if not folder.startswith(("/", "~/")):
        fault = f"is {folder}, which is relative"
        remedy = "give a path that begins with / or ~/"
        raise InvalidInputError.of("--folder", fault, remedy)
    from gpuyard.insight.boards import START

    program = resources.files("gpuyard.cli").joinpath(_PROGRAM).read_text()
    return {
        "name": _NAME,
        "command": ["python3", "-c", START, str(port), folder],
        "stdin": program,
        "packages": packages,
        "resources": {"cpus": 1, "gpus": 0},
        "labels": {_LABEL: str(port)},
        "live": True,
    }


def running_server(client: "Client", port: int) -> "JobHandle | None":
    """One's own server on this port, if one runs or waits."""
    user = client.who_am_i().user
    for state in _LIVE:
        for job in client.jobs(state=state, label={_LABEL: str(port)}):
            if job.user == user:
                return client.job(job.id)
    return None


def _stored(client: "Client", packages: Path | None) -> str:
    """The digest of the list of its packages, which is stored now."""
    from gpuyard.client import package_files

    if packages is not None:
        return client.call(package_files.store(packages.absolute()))
    with tempfile.TemporaryDirectory(prefix="gpuyard-mlflow-") as name:
        file = Path(name, "requirements.txt")
        file.write_text(_PACKAGES)
        return client.call(package_files.store(file))


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}"
