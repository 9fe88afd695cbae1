"""`gpuyard ledger`: check, back up, restore, copy, prune and rebuild the ledger;
through the server where one runs.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import print_json, say
from gpuyard.domain.errors import (
    InvalidInputError,
    LedgerError,
    NotFoundError,
    RefusedError,
)

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.config.paths import Home
    from gpuyard.ledger.ledger import Ledger

_WHERE = (
    "`home` (what this home uses), a SQLite file, a postgresql:// address, or `-`: an"
    " address from stdin."
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    ledger = typer.Typer(
        no_args_is_help=True,
        help="Check, back up, restore, copy, prune or rebuild the ledger.",
    )
    for command in (check, backup, restore, copy, prune, rebuild):
        ledger.command()(command)
    app.add_typer(ledger, name="ledger")


def check(as_json: AsJson = False) -> None:
    """Fold the journal anew and compare it with every row; exit code 4 when something
    differs.
    """
    client = _server()
    if client is not None:
        from gpuyard.client.calls import Call

        with client:
            report: dict[str, Any] = client.call(
                Call("GET", "/api/v1/ledger/check", lambda answer: answer)
            )
    else:
        from dataclasses import asdict

        from gpuyard.ledger import replay

        with _opened(_of_home(), new=False) as ledger:
            found = replay.check(ledger.engine)
            report = {"ok": found.ok, **asdict(found)}
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if not report["ok"]:
        raise typer.Exit(LedgerError.exit_code)


def _print_report(report: dict[str, Any]) -> None:
    from gpuyard.ledger.replay import RowDifference

    if report["gaps"]:
        say(f"{report['gaps']} events are missing from the journal")
    for difference in report["differences"]:
        say(str(RowDifference(**difference)))
    more = report["difference_count"] - len(report["differences"])
    if more > 0:
        say(f"and {more} more")
    rows = sum(report["rows"].values())
    verdict = "are what the journal says" if report["ok"] else "compared"
    say(f"{report['events']} events, {rows} rows {verdict}")


def backup(
    file: Annotated[Path, typer.Argument(help="A new SQLite file.")],
    as_json: AsJson = False,
) -> None:
    """Save the ledger as it is now into a file, while everything goes on."""
    if file.exists():
        raise InvalidInputError.of(
            "FILE", f"{file} exists already", "give the name of a new file"
        )
    client = _server()
    if client is not None:
        with client:
            client.back_up(file)
    else:
        from gpuyard.ledger import transfer

        with _opened(_of_home(), new=False) as ledger:
            transfer.backup(ledger.engine, file)
    if as_json:
        print_json({"file": str(file.absolute()), "size": file.stat().st_size})
    else:
        say(f"saved as {file}")


def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens",
            help="Keep the tokens of users that the backup has, also those that were"
            " revoked since.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of the ledger, damaged or not. Only while no server
    runs. All tokens of users end; the owner's stays.
    """
    _refuse_server()
    if not file.is_file():
        raise NotFoundError(f"There is no file {file}.", "Name a backup.")
    from gpuyard.ledger import pages

    where = _of_home()
    if isinstance(where, Path):
        from gpuyard.ledger.store import lock_ledger

        with lock_ledger(where.with_name("server.lock")):
            kept = pages.restore(file, where)
        with _opened(where) as restored:  # it is migrated, if need be
            ended = _end_tokens(restored, keep_tokens)
    else:
        from gpuyard.ledger import transfer

        # Opened as a ledger, it would become one.
        pages.check_backup(file)
        with _opened(file.absolute(), new=False) as origin, _opened(where) as copied:
            transfer.copy(origin.engine, copied.engine, replace=True)
            ended = _end_tokens(copied, keep_tokens)
        kept = None
    if as_json:
        done = {"file": str(file.absolute()), "kept": str(kept) if kept else None}
        print_json({**done, "ended_tokens": ended})
        return
    say(f"the ledger is what {file} says; `gpuyard up` goes on from there")
    if kept:
        say(f"the former one is {kept}")
    if ended:
        say(
            f"{ended} {'token' if ended == 1 else 'tokens'} of users ended: issue new"
            " ones with `gpuyard token new --user NAME`"
        )


def _end_tokens(ledger: "Ledger", keep: bool) -> int:
    if keep:
        return 0
    from gpuyard.ledger.ended_tokens import end_tokens

    return end_tokens(ledger)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=_WHERE)],
    target: Annotated[str, typer.Argument(metavar="TO", help=_WHERE)],
    replace: Annotated[
        bool, typer.Option("--replace", help="Give up what the target holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a whole ledger from one database into another, and check the copy."""
    if source == target:
        raise InvalidInputError.of("TO", "is the same as FROM", "name another ledger")
    from gpuyard.ledger import transfer

    with (
        _opened(_where(source, "FROM"), new=False) as origin,
        _opened(_where(target, "TO")) as copied,
    ):
        rows = transfer.copy(origin.engine, copied.engine, replace=replace)
    if as_json:
        print_json({"rows": rows})
    else:
        say(
            f"copied {sum(rows.values())} rows, {rows['events']} of them events; the"
            " copy is what its journal says"
        )


def prune(
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how much of each kind would go."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the history that `[retention]` says is too old, while everything goes
    on.
    """
    from gpuyard.client.calls import Call
    from gpuyard.client.sync import Client

    def ask(method: str) -> dict[str, Any]:
        path = "/api/v1/ledger/prune"
        call: Call[dict[str, Any]] = Call(method, path, lambda answer: answer)
        return client.call(call)

    with Client() as client:
        if dry_run:
            found = ask("GET")
        else:
            answer = ask("POST")
            while not answer["done"]:
                answer = ask("POST")
            found = {kind: {"count": n} for kind, n in answer["removed"].items()}
    if as_json:
        print_json({"dry_run": dry_run, "kinds": found})
        return
    found = {kind: amount for kind, amount in found.items() if amount["count"]}
    for kind, amount in found.items():
        size = f" ({amount['bytes'] / 1e6:,.1f} MB)" if dry_run else ""
        say(f"{amount['count']:>12,} {kind}{size}")
    if not found:
        say("nothing is old enough to go")


def rebuild() -> None:
    """Write the state tables anew from the journal. Only while no server runs."""
    _refuse_server()
    from gpuyard.ledger import replay

    with _opened(_of_home(), new=False) as ledger:
        replay.rebuild(ledger.engine)
    say("the tables are what the journal says")


def _refuse_server() -> None:
    client = _server()
    if client is not None:
        client.close()
        raise RefusedError(
            "A server works on this ledger.", "Stop it with `gpuyard down`."
        )


def _server() -> "Client | None":
    """The server that runs, if one does: it has the ledger open."""
    from gpuyard.client.connection import (
        find_server,
        running_server,
        used_instance,
    )
    from gpuyard.client.login import told_server
    from gpuyard.client.sync import Client

    is_told = told_server(_home()) or used_instance()
    if is_told or running_server(_home()):
        return Client(find_server(start=False))
    return None


def _home() -> "Home":
    from gpuyard.config.paths import Home

    return Home.find()


def _of_home() -> Path | str:
    from gpuyard.config.database import find_database
    from gpuyard.config.settings import load_settings

    home = _home()
    home.create()
    return find_database(home, load_settings(home).ledger.url)


def _where(said: str, field: str) -> Path | str:
    from gpuyard.config.database import checked_url

    if said == "home":
        return _of_home()
    if said == "-" or "://" in said:
        return checked_url(sys.stdin.readline().strip() if said == "-" else said, field)
    return Path(said).absolute()


@contextmanager
def _opened(where: Path | str, *, new: bool = True) -> "Generator[Ledger]":
    """The ledger at `where`, with no server beside; without `new` it must be there
    already.
    """
    from gpuyard.ledger.ledger import Ledger
    from gpuyard.ledger.store import lock_ledger

    if isinstance(where, Path) and not new and not where.is_file():
        raise NotFoundError(
            f"There is no ledger {where}.",
            "Start a server with `gpuyard up`, or name another ledger.",
        )
    # The lock of the home that the file is the ledger of, if it is one.
    lock = (
        where.with_name("server.lock")
        if isinstance(where, Path) and where.name == "ledger.db"
        else None
    )
    with lock_ledger(lock) if lock else nullcontext():
        ledger = Ledger.open(where)
        try:
            yield ledger
        finally:
            ledger.close()
