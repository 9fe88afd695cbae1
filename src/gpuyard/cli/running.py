"""`gpuyard exec, attach, forward`: beside a job that runs."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import Reference
from gpuyard.cli.follow import CANCELLED, GPUYARD_FAULT, detach, follow, summary
from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_json
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError, InvalidInputError, quoted

if TYPE_CHECKING:
    from gpuyard.cli.port_forward import PortPair
    from gpuyard.client.sync import Client

_LINES = 20
# Options that people write behind the job, where those of kubectl stand; whether each
# asks for a terminal.
_OWN_WORDS = {
    "-i": None,
    "-t": True,
    "-it": True,
    "-ti": True,
    "--tty": True,
    "--no-tty": False,
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("exec", context_settings={"allow_interspersed_args": False})(exec_)
    app.command()(attach)
    app.command()(forward)


def exec_(
    job: Reference,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND…", help="A program and its arguments."),
    ],
    tty: Annotated[
        bool | None,
        typer.Option(
            "--tty/--no-tty",
            "-t/-T",
            help="On a terminal, or with pipes; default: a terminal where there is one"
            " here.",
        ),
    ] = None,
    _interactive: Annotated[
        bool, typer.Option("-i", hidden=True, help="Input is always passed on.")
    ] = False,
) -> None:
    """Run COMMAND beside a running job: on its node, in its folder, with its GPUs.

    The exit code of the command becomes this one's. It ends with the job, and with this
    command.
    """
    from gpuyard.cli.remote_command import run_remotely

    words, tty_behind = _without_own(command)
    if not words:
        remedy = f"write `gpuyard exec {job} -- nvidia-smi`"
        raise InvalidInputError.of("COMMAND", "is missing", remedy)
    wanted = tty if tty_behind is None else tty_behind
    terminal = os.isatty(0) and os.isatty(1) if wanted is None else wanted
    try:
        with connect(start=False) as client:
            job_id = client.job(job).id
            code = run_remotely(client.address, job_id, words, terminal=terminal)
    except GpuyardError as error:
        # So that it is not taken for the command's.
        typer.echo(f"gpuyard: {error}", err=True)
        code = GPUYARD_FAULT
    except KeyboardInterrupt:
        code = CANCELLED
    sys.exit(code)


def _without_own(command: list[str]) -> tuple[list[str], bool | None]:
    """The command without the options of ours before it, and whether these ask for a
    terminal.
    """
    words = list(command)
    wants_terminal = None
    while words and words[0] in _OWN_WORDS:
        asked = _OWN_WORDS[words.pop(0)]
        wants_terminal = wants_terminal if asked is None else asked
    if words and words[0] == "--":
        del words[0]
    return words, wants_terminal


def attach(
    job: Reference,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Begin with the last so many.")
    ] = _LINES,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", help="Only watch: send it no input.")
    ] = False,
) -> None:
    """Follow a job from now on, as `gpuyard run` does; Ctrl-C leaves it alone.

    What is typed goes to a job that was submitted with -i; Ctrl-D ends its input.
    """
    from gpuyard.cli.typed_input import UnwantedInput, input_of

    try:
        with connect(patient=True) as client:
            handle = client.job(job)
            typed = None
            if not no_stdin:
                typed = input_of(client, handle) or UnwantedInput(handle)
            code = follow(handle, lines=lines, interrupted=detach, typed=typed)
    except GpuyardError as error:
        typer.echo(f"gpuyard: {error}", err=True)
        code = GPUYARD_FAULT
    sys.exit(code)


def forward(
    job: Reference,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="PORT…", help="8888; 9000:8888 for port 9000 here; :8888 for any."
        ),
    ],
    link: Annotated[
        bool,
        typer.Option(
            "--link", help="Print links for a browser, at the server's port for tools."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Lead ports of this machine to ports of a job, until it is over.

    Each PORT is one of the job's node, where the program listens. A job that has not
    started is waited for. With --link, the server leads browsers there instead: each
    link signs one browser in, within a minute.
    """
    from gpuyard.cli.job_start import wait_until_started
    from gpuyard.cli.port_forward import PortPair, forward_ports
    from gpuyard.client import job_calls

    pairs = [PortPair.parse(text) for text in ports]
    if as_json and not link:
        raise InvalidInputError.of("--json", "says nothing here", "add --link")
    if link and (local := next((text for text in ports if ":" in text), None)):
        fault = f"is {quoted(local)}, and a link uses no port of this machine"
        remedy = f"write {local.rpartition(':')[2]}, or leave out --link"
        raise InvalidInputError.of("PORT", fault, remedy)
    with connect(start=False, patient=True) as client:
        handle = client.job(job)
        try:
            wait_until_started(handle)
            if link:
                _print_links(client, handle.id, pairs, as_json=as_json)
                return
            node = client.call(job_calls.forward_place(handle.id, pairs[0].remote))
            forward_ports(client, handle.id, pairs, node)
        except KeyboardInterrupt:
            typer.echo(f"gpuyard: no longer forwarding; {handle.id} goes on", err=True)
            return
        typer.echo(summary(handle.refresh()), err=True)


def _print_links(
    client: "Client", job_id: str, pairs: Sequence["PortPair"], *, as_json: bool
) -> None:
    from gpuyard.client import job_calls

    calls = [job_calls.tool_link(job_id, pair.remote) for pair in pairs]
    urls = [client.call(call)[0] for call in calls]
    if as_json:
        print_json({"urls": urls})
    else:
        typer.echo("\n".join(urls))
