"""`gpuyard dev`: a place to work on a GPU, with a shell or JupyterLab, which ends when
nobody uses it.
"""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.job_start import wait_until_started
from gpuyard.cli.options import (
    CpusOption,
    GpuMemoryOption,
    GpusOption,
    MemoryOption,
    TierOption,
    given,
    gpu_request,
)
from gpuyard.cli.output import say
from gpuyard.cli.session import connect
from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle

_LABEL = "dev"
_LIVE = ["queued", "assigned", "running"]
_LEAST_IDLE_S = 5.0
_JUPYTER_PORT = 8888
_JUPYTER = re.compile(r"gpuyard dev: jupyter port=(\d+) token=(\S+)")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(dev)


def dev(
    gpus: GpusOption = None,
    gpu_memory: GpuMemoryOption = None,
    tier: TierOption = None,
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    jupyter: Annotated[
        bool, typer.Option("--jupyter", help="JupyterLab, on a port of this machine.")
    ] = False,
    idle: Annotated[
        str, typer.Option(help="End it when nobody has used it for so long.")
    ] = "30m",
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, help="Port of JupyterLab on the node, if it is free."
        ),
    ] = _JUPYTER_PORT,
    name: Annotated[str, typer.Option(help="The name of the place.")] = "dev",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start it, and print its id.")
    ] = False,
) -> None:
    """Work on a GPU: a shell or JupyterLab in this folder, on a node that fits.

    If there is a place of this name already, it is entered again. Leaving it does not
    end it: it ends with `gpuyard cancel`, or when nobody has used it for --idle.
    """
    kind = given(memory_gb=gpu_memory)
    resources = given(cpus=cpus, memory_gb=memory, gpus=gpu_request(gpus, kind) or None)
    fields = given(resources=resources or None, tier=tier)
    wanted = "jupyter" if jupyter else "shell"
    fields |= {"name": name, "labels": {_LABEL: wanted}, "live": True}
    idle_s = _seconds(idle)
    words = ["python3", "-", "--idle", f"{idle_s:g}"]
    if jupyter:
        words += ["--jupyter", str(port)]
    with connect() as client:
        job = _existing_place(client, name, wanted) or _start(client, words, fields)
        if detach:
            typer.echo(job.id)
            return
        wait_until_started(job)
        code = _show_jupyter(client, job) if jupyter else _open_shell(client, job)
        if not job.refresh().state.terminal:
            _say_that_it_goes_on(name, idle)
        sys.exit(code)


def _say_that_it_goes_on(name: str, idle: str) -> None:
    say(
        f"{name} goes on until it is not used for {idle}: `gpuyard dev --name {name}`"
        f" enters it, and `gpuyard cancel {name}` ends it"
    )


def _seconds(idle: str) -> float:
    try:
        seconds = units.seconds(idle)
    except ValueError:
        seconds = 0.0
    if seconds < _LEAST_IDLE_S:
        fault = f"is {idle!r}"
        raise InvalidInputError.of("--idle", fault, "write 5s or more, such as 30m")
    return seconds


def _existing_place(client: "Client", name: str, wanted: str) -> "JobHandle | None":
    """The place of this name that has not ended. RefusedError if something else has
    the name.
    """
    live = [job for state in _LIVE for job in client.jobs(name=name, state=state)]
    if not live:
        return None
    kind = (live[0].labels or {}).get(_LABEL)
    if kind != wanted:
        what = f"a place with a {kind}" if kind else "another job"
        raise RefusedError(f"{name} is {what}.", "Give this one another --name.")
    return client.job(live[0].id)


def _start(client: "Client", words: list[str], fields: dict[str, Any]) -> "JobHandle":
    """Submit the job that keeps the place."""
    from gpuyard.cli.command_body import command_body

    program = Path(__file__).with_name("dev_place.py").read_text()
    return client.run(command_body(words, {**fields, "stdin": program}, []))


def _open_shell(client: "Client", job: "JobHandle") -> int:
    from gpuyard.cli.remote_command import run_remotely
    from gpuyard.cli.ssh import SHELL

    terminal = os.isatty(0) and os.isatty(1)
    words = ["sh", "-c", SHELL]
    return run_remotely(client.address, job.id, words, terminal=terminal)


def _show_jupyter(client: "Client", job: "JobHandle") -> int:
    """Forward a port here to JupyterLab, and say where it is, until Ctrl-C."""
    from gpuyard.cli.port_forward import PortPair, forward_ports, free_port

    found = next((m for line in job.logs() if (m := _JUPYTER.search(line))), None)
    if found is None:
        job.refresh()
        raise RefusedError("JupyterLab did not start.", f"gpuyard logs {job.id}")
    port = int(found[1])
    token = job.exec(["cat", found[2]]).stdout.decode().strip()
    here = free_port(port)
    say(f"http://127.0.0.1:{here}/lab?token={token}")
    try:
        forward_ports(client, job.id, [PortPair(here, port)], job.info.node or "")
    except KeyboardInterrupt:
        return 0
    return 0
