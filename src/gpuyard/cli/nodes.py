"""`gpuyard nodes` and `gpuyard join`: the machines of an instance, and how others
become part of it.
"""

import os
import sys
from typing import Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.dashboard import disk_problems
from gpuyard.cli.output import ago, clock, print_json, print_page, print_table
from gpuyard.cli.session import connect
from gpuyard.config.paths import Home
from gpuyard.domain.errors import InvalidInputError

NodeArgument = Annotated[
    str,
    typer.Argument(metavar="NODE", help="Its name, its id, or the end of that."),
]
_COLUMNS = (
    "ID",
    "NAME",
    "PROVIDER",
    "STATE",
    "CPU",
    "MEMORY",
    "GPUS",
    "VERSION",
    "SEEN",
    "NOTE",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    nodes = typer.Typer(
        help="List the nodes and what is booked on them; invite machines, cordon,"
        " drain and remove nodes.",
        invoke_without_command=True,
    )
    nodes.callback()(list_nodes)
    for command in (invite, invitations, revoke, cordon, uncordon, drain, remove):
        nodes.command()(command)
    app.add_typer(nodes, name="nodes")
    app.command()(join)


def list_nodes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the nodes and what is booked on them; invite machines, cordon, drain and
    remove nodes.
    """
    if context.invoked_subcommand:
        return
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.listing("nodes"))
    if as_json:
        print_page(found)
        return
    print_table(_COLUMNS, map(_row, found), empty="No nodes yet.")


def _row(node: dict[str, Any]) -> tuple[Any, ...]:
    """The line of a node in the table."""
    is_cordoned = node["cordoned"] and node["state"] == "online"
    booked = node["booked"]
    problems = "; ".join(disk_problems([node]))
    return (
        node["id"][-8:],
        node["name"],
        node["provider"],
        "cordoned" if is_cordoned else node["state"],
        f"{booked['cpus']:g}/{node['cpus']:g}",
        f"{booked['memory_gb']:.3g}/{node['memory_gb']:.3g} GB",
        f"{booked['gpus']}/{node['gpus']}",
        node["version"],
        "" if node["state"] == "online" else ago(node["seen_at"]),
        node["reason"] or node["quarantine"] or problems,
    )


def invite(
    name: Annotated[
        str | None,
        typer.Option(help="The name of the machine; default: that of its host."),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="How long it is good, at most 7d.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Invite one machine to join: prints the line to type there. It holds a code, which
    is good once.
    """
    from gpuyard.client import calls
    from gpuyard.domain.joining import expiry_s

    with connect() as client:
        made = client.call(calls.invite_node(name, expiry_s(expires)))
    if as_json:
        print_json({**made.model_dump(), "command": made.command})
        return
    typer.echo(made.command)
    typer.echo(f"Good once, until {clock(made.expires_at)}.", err=True)


def invitations(as_json: AsJson = False) -> None:
    """List the invitations: which are open, and who has used which."""
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.listing("invitations"))
    if as_json:
        print_page(found)
        return
    rows = [
        (
            one["id"][-8:],
            one["name"],
            one["state"],
            clock(one["expires_at"]),
            clock(one["used_at"]) if one["used_at"] else "",
            one["used_from"],
        )
        for one in found
    ]
    columns = ("ID", "NAME", "STATE", "EXPIRES", "USED", "FROM")
    print_table(columns, rows, empty="No invitations yet.")


def revoke(
    invitation: Annotated[
        str,
        typer.Argument(metavar="INVITATION", help="Its name, its id, or its end."),
    ],
    as_json: AsJson = False,
) -> None:
    """Let nobody join with an invitation any more."""
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.revoke_invitation(invitation))
    if as_json:
        print_json(found.model_dump())
        return
    typer.echo(f"Nobody can join with {found.id} any more")


def cordon(node: NodeArgument, as_json: AsJson = False) -> None:
    """Give a node no new jobs. What runs there runs on."""
    _tend(node, "cordon", "{name} gets no new jobs", as_json)


def uncordon(node: NodeArgument, as_json: AsJson = False) -> None:
    """Give a node jobs again."""
    _tend(node, "uncordon", "{name} gets jobs again", as_json)


def drain(node: NodeArgument, as_json: AsJson = False) -> None:
    """Cordon a node, and let its jobs move: those that are preemptible or save
    checkpoints go on elsewhere, the others end there.
    """
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.tend_node(node, "drain"))
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['name']} gets no new jobs")
    if found["moved"]:
        typer.echo(f"They save their work and move: {', '.join(found['moved'])}")
    if found["left"]:
        typer.echo(f"They end there: {', '.join(found['left'])}")


def remove(node: NodeArgument, as_json: AsJson = False) -> None:
    """Remove a machine that has joined. Its jobs are tried again elsewhere, as their
    retries say.
    """
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.remove_node(node))
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['name']} is removed: its certificate is worth nothing any more")


def _tend(node: str, action: str, message: str, as_json: bool) -> None:
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.tend_node(node, action))
    if as_json:
        print_json(found)
        return
    typer.echo(message.format(name=found["name"]))


def join(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Where the instance is.")
    ] = None,
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="That of the invitation.")
    ] = None,
    code_file: Annotated[
        str | None,
        typer.Option(
            "--code-file",
            metavar="FILE",
            help="Read the code from this file, or from standard input (-): other users"
            " of this machine see what you type.",
        ),
    ] = None,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground", help="Run the agent here until Ctrl-C; install no service."
        ),
    ] = False,
    system: Annotated[
        bool | None,
        typer.Option(
            "--system/--user",
            help="A service of this machine, as root, or of this user; default: of"
            " whoever calls.",
        ),
    ] = None,
) -> None:
    """Let this machine join an instance, and run its jobs: type the line that `gpuyard
    nodes invite` prints there.

    Its agent becomes a service of systemd. Without URL and CODE, start the agent of a
    machine that has joined.
    """
    home = Home.find()
    may_run_for_users = _may_run_for_users(home)
    _become_member(home, url, code, code_file)
    if not may_run_for_users:
        typer.echo(
            "gpuyard: its agent runs as root, and no job of a user runs as root. To let"
            f" them run here, set `run_as` of [node] in {home.settings}.",
            err=True,
        )
    if not foreground:
        from gpuyard.cli.service import install_agent

        install_agent(home, system)
        return
    sys.stdout.flush()
    words = ["-m", "gpuyard.server.joined_node", "--home", str(home.root)]
    os.execv(sys.executable, [sys.executable, *words])


def _become_member(
    home: Home, url: str | None, code: str | None, code_file: str | None
) -> None:
    """Join the instance by this invitation. Without one, InvalidInputError unless this
    machine has joined.
    """
    from gpuyard.client import joining
    from gpuyard.config.joined import read_membership, refuse_copied_home

    known = read_membership(home)
    if code_file is not None:
        code = joining.code_in(code_file, code)
    if url and code:
        membership = joining.join(home, url, code)
        typer.echo(f"This machine is {membership.name} now, of {membership.host}.")
    elif url or known is None:
        raise InvalidInputError.of(
            "CODE",
            "is missing",
            "copy the whole line that `gpuyard nodes invite` prints: gpuyard join"
            " https://HOST:PORT CODE",
        )
    else:
        refuse_copied_home(home, known)


def _may_run_for_users(home: Home) -> bool:
    """Whether the agent runs jobs of users. InvalidInputError if it would not start
    with these settings: an invitation is good only once.
    """
    from gpuyard.config.accounts import Accounts
    from gpuyard.config.settings import load_settings

    accounts = Accounts.of(load_settings(home).node)
    return accounts is not None or os.geteuid() != 0
