"""`gpuyard ssh`: a shell in a running job, and the entry by which other programs reach
it over ssh.
"""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import Reference
from gpuyard.cli.follow import CANCELLED, GPUYARD_FAULT
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

# What runs if no command is given.
SHELL = "if command -v bash > /dev/null; then exec bash -i; else exec sh -i; fi"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(context_settings={"allow_interspersed_args": False})(ssh)


def ssh(
    job: Reference,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND…]", help="A command for that shell."),
    ] = None,
    config: Annotated[
        bool,
        typer.Option("--config", help="Print an entry for ~/.ssh/config instead."),
    ] = False,
    stdio: Annotated[
        bool,
        typer.Option("--stdio", help="As ProxyCommand of ssh: connect it to the job."),
    ] = False,
) -> None:
    """Open a shell in a running job: on its node, in its folder, with its GPUs.

    The exit code of the shell becomes this command's. The shell ends with the job.
    """
    if (config or stdio) and (command or (config and stdio)):
        option = "--config" if config else "--stdio"
        raise InvalidInputError.of(
            option, "takes no command, and no other option", "leave the rest out"
        )
    try:
        with connect(start=False) as client:
            code = _run(client, job, command or [], config=config, stdio=stdio)
    except GpuyardError as error:
        # So that it is not taken for the shell's.
        typer.echo(f"gpuyard: {error}", err=True)
        code = GPUYARD_FAULT
    except KeyboardInterrupt:
        code = CANCELLED
    sys.exit(code)


def _run(
    client: "Client", job: str, command: list[str], *, config: bool, stdio: bool
) -> int:
    from gpuyard.cli import ssh_access
    from gpuyard.cli.remote_command import run_remotely

    handle = client.job(job)
    if config:
        user = ssh_access.user_of(handle)
        typer.echo(ssh_access.config_entry(job, user), nl=False)
        return 0
    if stdio:
        words = ssh_access.server_command()
        return run_remotely(client.address, handle.id, words, terminal=False)
    # Joined, as ssh joins the words behind the host.
    words = ["sh", "-c", " ".join(command) or SHELL]
    terminal = os.isatty(0) and os.isatty(1)
    return run_remotely(client.address, handle.id, words, terminal=terminal)
