"""`gpuyard service`: the server as a service of systemd, which starts it at boot."""

import os
import shutil
from typing import Annotated

import typer

from gpuyard.config import shared as shared_instance
from gpuyard.config.paths import Home
from gpuyard.config.systemd import (
    AGENT_UNIT,
    UNIT,
    SharedService,
    agent_unit_text,
    unit_path,
    unit_text,
)
from gpuyard.domain.errors import InvalidInputError, RefusedError

_IS_ROOT = os.geteuid() == 0
_DOWN = "gpuyard down --running leave"
System = Annotated[
    bool,
    typer.Option(
        "--system/--user",
        help="For this machine, as root, or for this user; default: for whoever calls.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    service = typer.Typer(
        help="Let systemd run the server: at boot, and again when it was killed.",
        no_args_is_help=True,
    )
    service.command()(install)
    service.command()(remove)
    app.add_typer(service, name="service")


def install(
    system: System = _IS_ROOT,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="One server for all members of a group, with its settings in"
            " /etc/gpuyard.",
        ),
    ] = False,
    group: Annotated[
        str, typer.Option(help="With --shared: who may use it.")
    ] = "gpuyard",
    account: Annotated[
        str,
        typer.Option(
            help="With --shared: the account of the server. Under root, each job runs"
            " as its submitter; else all jobs run under this account."
        ),
    ] = "root",
    print_: Annotated[
        bool, typer.Option("--print", help="Only print the unit, and change nothing.")
    ] = False,
) -> None:
    """Write a unit for the server of this home, start it, and enable it for each
    boot.
    """
    sharing = None
    home = Home.find()
    if shared:
        sharing = SharedService(shared_instance.SETTINGS, group, account)
        home = Home(shared_instance.HOME)
    text = unit_text(home.root, system=system, shared=sharing)
    if print_:
        _print(text, sharing)
        return
    _refuse_others(system)
    _refuse_running(home, "gpuyard service remove" if shared else _DOWN)
    if sharing:
        _prepare(sharing, system)
    else:
        home.create()
    _enable(text, system)
    _tell_enabled(home, sharing, system)


def _tell_enabled(home: Home, sharing: SharedService | None, system: bool) -> None:
    typer.echo(
        f"{unit_path(system=system)} is enabled: the server of {home.root} runs now and"
        " at boot"
    )
    if sharing:
        from gpuyard.cli.shared_service import wait_until_it_listens

        wait_until_it_listens()
        typer.echo(
            f"Members of the group {sharing.group} use it. To add one: `usermod -aG"
            f" {sharing.group} NAME`, and NAME logs in again."
        )
    if not system:
        typer.echo(
            "Until you run `loginctl enable-linger`, it begins when you log in. When"
            " you log out, systemd ends it, and all its jobs."
        )


def _print(text: str, sharing: SharedService | None) -> None:
    typer.echo(text, nl=False)
    if sharing:
        from gpuyard.cli.shared_service import settings_text

        typer.echo(f"\n# {sharing.settings}\n{settings_text(sharing)}", nl=False)


def _prepare(sharing: SharedService, system: bool) -> None:
    from gpuyard.cli.shared_service import prepare

    if not system:
        raise InvalidInputError.of(
            "--shared", "needs a service of the system", "add --system, as root"
        )
    prepare(sharing)


def install_agent(home: Home, wanted: bool | None) -> None:
    """Let systemd run the agent of a machine that has joined: now, and at each boot.
    `wanted`: for the machine, or for this user; None: for whoever calls.
    """
    system = _IS_ROOT if wanted is None else wanted
    if shutil.which("systemctl") is None:
        raise RefusedError(
            "There is no systemd here to run the agent.",
            "Let your service manager run `gpuyard join --foreground`.",
        )
    _refuse_others(system)
    unit = agent_unit_text(home.root, system=system)
    otherwise = "or let your service manager run `gpuyard join --foreground`"
    _enable(unit, system, AGENT_UNIT, otherwise)
    typer.echo(
        f"{unit_path(system=system, name=AGENT_UNIT)} is enabled: the agent runs now"
        " and at boot"
    )
    if not system:
        typer.echo(
            "Until you run `loginctl enable-linger`, it begins when you log in, and"
            " ends with all its jobs when you log out."
        )


def _enable(
    text: str, system: bool, name: str = UNIT, otherwise: str | None = None
) -> None:
    path = unit_path(system=system, name=name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    again = f"`{' '.join(_command(system))} enable --now {name}`"
    remedy = f"The unit is written; try {again} when systemd can be reached"
    remedy = f"{remedy}, {otherwise}." if otherwise else f"{remedy}."
    _systemctl(system, "daemon-reload", remedy=remedy)
    _systemctl(system, "enable", "--now", name, remedy=remedy)


def remove(system: System = _IS_ROOT) -> None:
    """Stop the service and remove its unit. The home stays, and so do running jobs."""
    _refuse_others(system)
    path = unit_path(system=system)
    if not path.exists():
        raise RefusedError(
            f"There is no {path}.", "Look for it with the other of --system and --user."
        )
    remedy = "The unit is still there; run this command again."
    _systemctl(system, "disable", "--now", UNIT, remedy=remedy)
    path.unlink()
    _systemctl(system, "daemon-reload", remedy="The unit is removed.")
    typer.echo(f"{path} is removed; `gpuyard up` starts a server without it")
    if system:
        from gpuyard.cli.shared_service import retire_settings

        if kept := retire_settings():
            typer.echo(f"The settings of the shared server are now {kept}")


def _refuse_others(system: bool) -> None:
    if system and os.geteuid() != 0:
        raise InvalidInputError.of(
            "--system", "needs root", "use sudo, or --user for a service of your own"
        )
    if shutil.which("systemctl") is None:
        raise InvalidInputError.of(
            "service",
            "needs systemd, and there is no systemctl",
            "let your service manager run `gpuyard up --foreground`",
        )


def _refuse_running(home: Home, stop: str) -> None:
    from gpuyard.client.connection import running_server

    if running_server(home):
        raise RefusedError(
            f"A server of {home.root} runs already, as a service or without one.",
            f"To install it anew, stop it with `{stop}`; jobs run on.",
        )


def _command(system: bool) -> list[str]:
    return ["systemctl"] if system else ["systemctl", "--user"]


def _systemctl(system: bool, *words: str, remedy: str) -> None:
    import subprocess  # late, because every command imports this module

    command = [*_command(system), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"it left with {done.returncode}"
        fault = f"`{' '.join(command)}` failed: {said.rstrip('.')}."
        raise RefusedError(fault, remedy)
