"""`gpuyard batch`: one script over many files, as one."""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.options import SecretOption, pairs_of, secrets_of
from gpuyard.cli.output import (
    ago,
    clock,
    console,
    print_fields,
    print_json,
    print_page,
    print_table,
    say,
)
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError, UnreachableError
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

_LOOK_S = 0.5
_MOST_FAILURES = 20
BatchId = Annotated[
    str,
    typer.Argument(
        metavar="BATCH",
        help="Its id; `gpuyard batch` lists them.",
        autocompletion=suggest.batches,
    ),
]
Type = Annotated[
    str | None,
    typer.Argument(metavar="TYPE", help="A script's name, or transcribe, embed."),
]
Source = Annotated[
    str | None,
    typer.Argument(metavar="PATH", help="A folder, a glob, a manifest or a .zim."),
]
TypeOption = Annotated[str | None, typer.Option("--type", help="The same as TYPE.")]
InputOption = Annotated[str | None, typer.Option("--input", help="The same as PATH.")]
Most = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="At most so many items.")
]
Alone = Annotated[
    bool | None,
    typer.Option(
        "--exclusive/--shared",
        help="Whether models make room; default: from 50 items on.",
    ),
]
Args = Annotated[
    list[str] | None,
    typer.Option("--arg", help="NAME=VALUE, an argument of the script."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    batch = typer.Typer(
        help="Run a script over many files, and follow it.", invoke_without_command=True
    )
    batch.callback()(listing)
    for command in (submit, estimate, show, follow, cancel, retry):
        batch.command()(command)
    batch.command("list", hidden=True)(listing)
    app.add_typer(batch, name="batch")


def listing(context: typer.Context, as_json: AsJson = False) -> None:
    """List the batches, the newest first."""
    if context.invoked_subcommand:
        return
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.listing("batches"))
    if as_json:
        print_page(found)
        return
    columns = (
        "BATCH",
        "STATE",
        "MODE",
        "DONE",
        "FAILED",
        "WORKERS",
        "ETA",
        "SUBMITTED",
        "PROBLEM",
    )
    rows = [
        (
            b["batch_id"],
            b["state"],
            b["gpu_mode"],
            f"{b['completed']}/{b['total_items']}",
            b["failed"] or None,
            b["workers"] or None,
            _eta(b),
            ago(b["created_at"]),
            b["problem"],
        )
        for b in found
    ]
    print_table(
        columns,
        rows,
        empty="No batches. `gpuyard batch submit transcribe PATH` makes one.",
    )


def _eta(batch: dict[str, Any]) -> str | None:
    return None if batch["eta_s"] is None else format_duration(batch["eta_s"])


# --- submit and estimate ---


def submit(
    type_: Type = None,
    path: Source = None,
    type_option: TypeOption = None,
    input_option: InputOption = None,
    batch_size: Most = None,
    exclusive: Alone = None,
    arg: Args = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, or NAME to pass this shell's value."),
    ] = None,
    secret: SecretOption = None,
    results: Annotated[
        Path | None,
        typer.Option(help="The folder for the folder of results; default: here."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=5, help="5 is urgent, 3 the default.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            help="The project that it belongs to.", autocompletion=suggest.projects
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Sent twice, makes one batch.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the batch's id and leave.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the script TYPE over every file of PATH, and follow it; `gpuyard batch show`
    lists what became of each.
    """
    from gpuyard.client import calls

    body = _body(
        type_ or type_option, path or input_option, batch_size, exclusive, arg or []
    )
    body["environment"] |= pairs_of("env", env or [], os.environ)
    more = {
        "results": str(results.absolute()) if results else None,
        "secrets": secrets_of(secret or []) or None,
        "priority": priority,
        "project": project,
        "idempotency_key": key,
    }
    body |= {name: value for name, value in more.items() if value is not None}
    with connect(patient=not detach) as client:
        if not (as_json or detach):
            _tell(client.call(calls.estimate_batch(body)))
        batch = client.call(calls.submit_batch(body))
        if as_json:
            print_json(batch)
        elif detach:
            say(batch["batch_id"])
        else:
            sys.exit(_follow(client, batch["batch_id"]))


def estimate(
    type_: Type = None,
    path: Source = None,
    type_option: TypeOption = None,
    input_option: InputOption = None,
    batch_size: Most = None,
    exclusive: Alone = None,
    arg: Args = None,
    as_json: AsJson = False,
) -> None:
    """Say how long a batch would take, and which GPU would do what; nothing is
    submitted.
    """
    from gpuyard.client import calls

    body = _body(
        type_ or type_option, path or input_option, batch_size, exclusive, arg or []
    )
    with connect() as client:
        found = client.call(calls.estimate_batch(body))
    if as_json:
        print_json(found)
    else:
        _tell(found)


def _body(
    script: str | None,
    source: str | None,
    most: int | None,
    exclusive: bool | None,
    args: list[str],
) -> dict[str, Any]:
    """What is sent: the items with their lengths."""
    from gpuyard.client import bodies, media

    for name, given in (("TYPE", script), ("PATH", source)):
        if not given:
            raise InvalidInputError.of(
                name, "is missing", "write `gpuyard batch submit transcribe PATH`"
            )
    assert script
    assert source
    items = media.expand(script, source, most)
    if media.is_media(script) and not _probe(items):
        typer.echo(
            "gpuyard: note: pip install 'gpuyard[video]' to know how long each file"
            " plays",
            err=True,
        )
    fields: dict[str, Any] = {
        "args": {name: _value(text) for name, text in pairs_of("arg", args, {}).items()}
    }
    if exclusive is not None:
        fields["mode"] = "exclusive" if exclusive else "shared"
    return bodies.batch_body(script, items, source, fields)


def _value(text: str) -> Any:
    """An argument's value: JSON where it is any, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _probe(items: list[dict[str, Any]]) -> bool:
    """Find out how long each plays, with a bar on a terminal."""
    from gpuyard.client import media

    if not sys.stderr.isatty():
        return media.probe(items)
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking at the files", total=len(items))
        return media.probe(items, lambda number, _: bar.update(task, completed=number))


def _tell(found: dict[str, Any]) -> None:
    """An estimate as a plan for people."""
    known = (
        "" if found["pace_known"] else " (a guess: this script has not run here yet)"
    )
    total = (
        "no GPU here will do"
        if found["total_s"] is None
        else f"about {format_duration(found['total_s'])}{known}"
    )
    say(f"{found['items']} items for {found['script']}, {found['mode']}: {total}")
    rows = [
        (
            "none" if leg["gpu"] is None else leg["gpu"],
            leg["items"],
            format_duration(leg["begins_s"]),
            format_duration(leg["dry_s"]),
            ", ".join(leg["reload"]),
            format_duration(leg["over_s"]) if leg["reload"] else None,
        )
        for leg in found["plan"]
    ]
    if found["plan"]:
        print_table(
            ("GPU", "ITEMS", "FROM", "UNTIL", "THEN LOADS", "READY"), rows, empty=""
        )


# --- show and follow ---


def show(batch: BatchId, as_json: AsJson = False) -> None:
    """Show a batch and what became of each item."""
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.batch(batch))
    if as_json:
        print_json(found)
        return
    _print_batch(found)
    say()
    rows = [
        (
            item["number"],
            item["state"],
            item["video_path"],
            item["attempts"] or None,
            _took(item),
            item["reason"],
        )
        for item in found["items"]
    ]
    print_table(("#", "STATE", "ITEM", "ATTEMPTS", "TOOK", "REASON"), rows, empty="")


def _print_batch(found: dict[str, Any]) -> None:
    done = ", ".join(
        f"{count} {state}" for state, count in found["counts"].items() if count
    )
    print_fields(
        {
            "batch": found["batch_id"],
            "script": found["script"],
            "source": found["source"],
            "project": found["project"],
            "user": found["user"],
            "state": found["state"],
            "mode": found["gpu_mode"],
            "items": f"{found['total_items']} ({done})",
            "results": found["results"],
            "submitted": clock(found["created_at"]),
            "ended": clock(found["ended_at"]) if found["ended_at"] else None,
            "ETA": _eta(found),
            "problem": found["problem"],
        }
    )


def _took(item: dict[str, Any]) -> str | None:
    return (
        format_duration(item["ended_at"] - item["started_at"])
        if item["ended_at"] and item["started_at"]
        else None
    )


def follow(batch: BatchId) -> None:
    """Follow a batch to its end; leaves with 1 when an item has failed."""
    with connect(patient=True) as client:
        sys.exit(_follow(client, batch))


def _follow(client: "Client", batch_id: str) -> int:
    try:
        found = _watch(client, batch_id)
    except KeyboardInterrupt:
        typer.echo(
            f"detached: {batch_id} goes on; follow it with `gpuyard batch follow"
            f" {batch_id}`",
            err=True,
        )
        return 0
    failures = [item for item in found["items"] if item["state"] == "failed"]
    for item in failures[:_MOST_FAILURES]:
        typer.echo(f"failed: {item['video_path']}: {item['reason']}", err=True)
    if len(failures) > _MOST_FAILURES:
        typer.echo(
            f"and {len(failures) - _MOST_FAILURES} more; see `gpuyard batch show"
            f" {batch_id}`",
            err=True,
        )
    took = format_duration(found["ended_at"] - found["created_at"])
    say(
        f"{batch_id} {found['state']}: {found['completed']}/{found['total_items']} in"
        f" {took}; {found['results']}"
    )
    if failures:
        typer.echo(
            f"`gpuyard batch retry {batch_id}` does the failed ones again", err=True
        )
    return 0 if found["completed"] == found["total_items"] else 1


def _watch(client: "Client", batch_id: str) -> dict[str, Any]:
    """The batch as it is in the end; a bar meanwhile, on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from gpuyard.client import calls

    found = client.call(calls.batch(batch_id, items=False))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
    )
    screen = console(stderr=True)
    with Progress(
        *columns, console=screen, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(batch_id, total=found["total_items"], words="")
        while found["ended_at"] is None:
            bar.update(
                task,
                completed=found["completed"] + found["failed"],
                words=" · ".join(_bar_words(found)),
            )
            time.sleep(_LOOK_S)
            with suppress(UnreachableError):  # a server that is away for a moment
                found = client.call(calls.batch(batch_id, items=False))
    return client.call(calls.batch(batch_id))


def _bar_words(found: dict[str, Any]) -> list[str]:
    """What stands behind the bar of a batch."""
    words: list[str] = []
    if found["state"] != "running":
        words.append(found["state"])
    words.append(f"{found['workers']} workers")
    if found["failed"]:
        words.append(f"{found['failed']} failed")
    eta = _eta(found)
    if eta is not None:
        words.append(f"ETA {eta}")
    return words


# --- cancel and retry ---


def cancel(batch: BatchId) -> None:
    """End a batch: what waits and what runs. Models that made room come back."""
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.tend_batch(batch, "cancel"))
    say(f"{batch} ends; {found['completed']} of {found['total_items']} items were done")


def retry(
    batch: BatchId,
    exclusive: Alone = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave at once.")
    ] = False,
) -> None:
    """Do the items again that failed or were cancelled, and follow them."""
    from gpuyard.client import calls

    mode = None
    if exclusive is not None:
        mode = "exclusive" if exclusive else "shared"
    with connect(patient=not detach) as client:
        found = client.call(calls.tend_batch(batch, "retry", {"mode": mode}))
        say(f"{found['counts']['queued']} items of {batch} wait again")
        if not detach:
            sys.exit(_follow(client, batch))
