"""`gpuyard up, down, doctor`: the server's life, and what is wrong with this
machine.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import count, print_json, print_table
from gpuyard.config.paths import Home
from gpuyard.config.shared import OWN_SERVER, SharedInstance
from gpuyard.domain.errors import GpuyardError, RefusedError, UnreachableError
from gpuyard.domain.stopping import RunningJobs

_STOP_S = 20.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (up, down, doctor):
        app.command()(command)


def up(
    foreground: Annotated[
        bool, typer.Option(help="Stay in the foreground, for a service manager.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen on this port.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep the ledger in this PostgreSQL database from now on; `sqlite`: in"
            " the home's own file; `-`: read the URL, which may hold a password, from"
            " stdin.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the settings, TOML or JSON, from this file from now on;"
            " `default`: from the home's own file.",
        ),
    ] = None,
    simulate_gpus: Annotated[
        str | None,
        typer.Option(
            metavar="NxGB",
            help="Pretend that this machine has N GPUs of so many GB, to try things"
            " out.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the server of this home, unless it runs already."""
    from gpuyard.client.connection import used_instance

    if shared := used_instance():
        options = (database, config, simulate_gpus, port, foreground or None)
        _up_already(shared, options, as_json=as_json)
        return
    _use_options(database, config, simulate_gpus, port)
    if foreground:
        from gpuyard.config.private_environment import execute

        execute([sys.executable, "-m", "gpuyard.server", "--foreground"])
    _start(as_json=as_json)


def _use_options(
    database: str | None,
    config: Path | None,
    simulate_gpus: str | None,
    port: int | None,
) -> None:
    """Let a server that starts have these settings; it reads them from the home, or
    from its environment.
    """
    if database is not None:
        _use_database(sys.stdin.readline().strip() if database == "-" else database)
    if config is not None:
        _use_config(config)
    if simulate_gpus is not None:
        _use_setting(
            "GPUYARD_NODE__SIMULATE_GPUS", simulate_gpus, "with the GPUs it has"
        )
    if port is not None:
        _refuse_other_port(port)
        os.environ["GPUYARD_SERVER__PORT"] = str(port)


def _start(*, as_json: bool) -> None:
    """Start the server unless it runs, and say where it is."""
    from gpuyard.client.connection import (
        managed_server,
        running_server,
        start_server,
    )

    home = Home.find()
    running = running_server(home) or managed_server(home)
    address = running or start_server(home)
    if as_json:
        print_json(
            {"url": address.url, "home": str(home.root), "started": running is None}
        )
        return
    state = "runs already" if running else "is up"
    typer.echo(f"gpuyard {state} at {address.url}, home {home.root}")


def _up_already(
    shared: SharedInstance, options: Sequence[object], *, as_json: bool
) -> None:
    """There is nothing to start where all users of the machine share a server;
    RefusedError for options that would change it.
    """
    from gpuyard.client.connection import shared_server

    if any(option is not None for option in options):
        raise RefusedError(
            "This machine has a shared server, which no command but systemctl starts.",
            f"Leave the options out; {OWN_SERVER}.",
        )
    shared_server(shared)
    if as_json:
        print_json({"url": None, "home": None, "started": False})
    else:
        typer.echo(f"gpuyard runs already, for all members, at {shared.socket}")


def _use_database(url: str) -> None:
    from gpuyard.config.database import remember_database

    home = Home.find()
    home.create()
    _refuse_running("with the database it has")
    remember_database(home, url)


def _use_config(config: Path) -> None:
    from gpuyard.config.settings import load_settings
    from gpuyard.config.settings_file import OWN_FILE, remember_settings

    home = Home.find()
    home.create()
    _refuse_running("with the settings it has")
    # This start reads what was given here, and so does whoever starts it again.
    os.environ.pop("GPUYARD_CONFIG", None)
    is_own = str(config) == OWN_FILE or config.absolute() == home.own_settings
    if not is_own:
        load_settings(home, config.absolute())
    remember_settings(home, None if is_own else config)


def _use_setting(variable: str, value: str, has: str) -> None:
    """Give the server that is to start a setting; what is wrong is told here, and not
    by one that does not start.
    """
    from gpuyard.config.settings import load_settings

    _refuse_running(has)
    os.environ[variable] = value
    load_settings(Home.find())


def _refuse_other_port(port: int) -> None:
    """RefusedError when a server of this home listens on another port."""
    from urllib.parse import urlsplit

    from gpuyard.client.connection import running_server
    from gpuyard.config.paths import Home

    running = running_server(Home.find())
    # 0 asks for any port.
    if running and port not in (0, urlsplit(running.url).port):
        raise RefusedError(
            f"A server of this home runs at {running.url}, not on port {port}.",
            "Stop it with `gpuyard down`.",
        )


def _refuse_running(how: str) -> None:
    from gpuyard.client.connection import running_server

    if running_server(Home.find()):
        raise RefusedError(
            f"A server of this home runs, {how}.", "Stop it with `gpuyard down`."
        )


def down(
    running: Annotated[
        RunningJobs,
        typer.Option(
            help="Running jobs: refuse to stop, leave them running, or cancel them."
            " Jobs that wait go on waiting, for the next start."
        ),
    ] = RunningJobs.REFUSE,
    as_json: AsJson = False,
) -> None:
    """Stop the server of this home. Jobs left running are adopted by the next start."""
    from gpuyard.cli.session import connect
    from gpuyard.client import calls
    from gpuyard.client.connection import running_server, used_instance

    if used_instance():
        raise RefusedError(
            "Your commands use the shared server of this machine.",
            "An administrator stops it with `systemctl stop gpuyard`; to stop one of"
            " your own, set GPUYARD_HOME=~/.gpuyard.",
        )
    home = Home.find()
    _refuse_elsewhere(home)
    _give_up_killed(home)
    try:
        with connect(start=False) as client:
            answer = client.call(calls.stop(running.value))
    except UnreachableError as error:
        if running_server(home):
            raise
        answer = {"stopping": False, "message": error.message}
    except RefusedError as error:
        raise RefusedError(
            error.message, "Use --running leave or --running cancel."
        ) from None
    if answer["stopping"]:
        _wait_until_gone(home, with_node=bool(answer.get("stops_node")))
    if as_json:
        print_json(answer)
    else:
        typer.echo(_down_words(answer) if answer["stopping"] else answer["message"])


def _refuse_elsewhere(home: Home) -> None:
    """RefusedError if one has signed in elsewhere: what is typed out of habit must not
    stop the server of all.
    """
    from gpuyard.client.login import read_login

    login = None if os.environ.get("GPUYARD_URL") else read_login(home)
    if login:
        raise RefusedError(
            f"You are signed in to {login.url}, and this stops the server of"
            f" {home.root}.",
            "Type `gpuyard logout` first. A server elsewhere is stopped on its own"
            " machine.",
        )


def _give_up_killed(home: Home) -> None:
    """Let nobody start a server again that was killed; one that is just starting is
    waited for.
    """
    from gpuyard.client.connection import running_server, was_killed
    from gpuyard.config.locks import is_locked

    if was_killed(home):
        home.server.unlink(missing_ok=True)
    deadline = time.monotonic() + _STOP_S
    while is_locked(home.lock) and running_server(home) is None:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _wait_until_gone(home: Home, *, with_node: bool) -> None:
    """Wait until the server has ended; with `with_node`, its node's processes, too."""
    from gpuyard.config.locks import is_locked

    deadline = time.monotonic() + _STOP_S
    while time.monotonic() < deadline:
        node_runs = with_node and is_locked(home.node / "keeper.lock")
        if not node_runs and not is_locked(home.lock):
            return
        time.sleep(0.02)
    raise GpuyardError(
        f"The server of {home.root} still runs after {_STOP_S:g} s.",
        f"Its log, {home.logs / 'server.log'}, may say why.",
    )


def _down_words(answer: dict[str, Any]) -> str:
    jobs: list[str] = []
    if cancelled := answer.get("cancelled"):
        jobs.append(f"{count(cancelled, 'running job')} cancelled")
    if running := answer.get("left_running"):
        jobs.append(f"{count(len(running), 'job')} left running")
    if waiting := answer.get("left_waiting"):
        jobs.append(f"{count(waiting, 'job')} left waiting")
    return f"gpuyard is down: {', '.join(jobs)}" if jobs else "gpuyard is down"


def doctor(as_json: AsJson = False) -> None:
    """Look at this machine and this home, and say what is wrong and what to do."""
    from gpuyard.cli.checkup import examine

    findings = examine()
    if as_json:
        print_json({"items": [finding.to_json() for finding in findings], "next": None})
    else:
        rows = [
            (f.what, "ok" if f.ok else "PROBLEM", f.found, f.remedy) for f in findings
        ]
        print_table(("CHECK", "RESULT", "FOUND", "WHAT TO DO"), rows, empty="")
    if not all(finding.ok for finding in findings):
        sys.exit(1)
