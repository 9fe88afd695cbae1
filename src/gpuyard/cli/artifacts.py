"""`gpuyard artifacts`: the files that jobs have left."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.model_card import card
from gpuyard.cli.output import (
    ago,
    clock,
    count,
    print_json,
    print_page,
    print_table,
    say,
    size,
    transfer_bar,
)
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError, NotFoundError
from gpuyard.domain.units import format_duration, seconds

if TYPE_CHECKING:
    from gpuyard.domain.artifacts import Artifact

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH]...", help="Files, or folders of files; default: all."
    ),
]
OnePath = Annotated[
    str, typer.Argument(metavar="PATH", help="A file, as `list` shows it.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    artifacts = typer.Typer(
        help="List, get, share and remove the files that jobs have left.",
        no_args_is_help=True,
    )
    artifacts.command("list")(listing)
    artifacts.command("get")(get)
    artifacts.command("share")(share)
    artifacts.command("links")(links)
    artifacts.command("end-link")(end_link)
    artifacts.command("end-links")(end_links)
    artifacts.command("card")(card)
    artifacts.command("rm")(remove)
    app.add_typer(artifacts, name="artifacts")


def listing(job: Reference, as_json: AsJson = False) -> None:
    """List the artifacts of a job."""
    with connect() as client:
        found = client.job(job).artifacts()
    if as_json:
        print_page(found)
        return
    rows = [
        (each.path, size(each.size), ago(each.created_at), each.sha256[:12])
        for each in found
    ]
    empty = "No artifacts. Name them with --artifacts when you run a job."
    print_table(("PATH", "SIZE", "SAVED", "SHA256"), rows, empty=empty)


def get(
    job: Reference,
    paths: Paths = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to save them in.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Download artifacts to their paths below a folder, and check their SHA-256."""
    with connect() as client:
        handle = client.job(job)
        wanted = _chosen(handle.artifacts(), handle.id, paths or [])
        with _bar(sum(artifact.size for artifact in wanted)) as tell:
            saved = [
                client.download_artifact(artifact, output, tell) for artifact in wanted
            ]
    if as_json:
        print_json({"items": [str(path) for path in saved]})
        return
    for path in saved:
        typer.echo(path)


def share(
    job: Reference,
    path: OnePath,
    valid: Annotated[
        str, typer.Option("--for", help="How long it is valid, such as 2h or 30d.")
    ] = "7d",
    as_json: AsJson = False,
) -> None:
    """Make a link with which anybody who can reach the server gets one file. It
    expires, and opens nothing once the file is removed.
    """
    valid_s = _validity(valid)
    with connect() as client:
        handle = client.job(job)
        artifact = _artifact_at(path, handle.artifacts(), handle.id)
        link = client.share_artifact(artifact, valid_s)
    if as_json:
        print_json(link)
        return
    typer.echo(link.url)
    note = f"Anybody who has this link gets {path} for {format_duration(valid_s)}."
    typer.echo(note, err=True)


def links(job: Reference, path: OnePath, as_json: AsJson = False) -> None:
    """List the links of `share` that open a file now."""
    with connect() as client:
        handle = client.job(job)
        found = client.artifact_links(_artifact_at(path, handle.artifacts(), handle.id))
    if as_json:
        print_page(found)
        return
    rows = [
        (each.id, each.made_by or "the owner", clock(each.expires_at), each.url)
        for each in found
    ]
    print_table(("ID", "MADE BY", "UNTIL", "LINK"), rows, empty="No link opens it.")


def end_link(
    job: Reference,
    path: OnePath,
    link: Annotated[str, typer.Argument(metavar="ID", help="As `links` shows it.")],
    as_json: AsJson = False,
) -> None:
    """End one link of `share`: it opens nothing any more."""
    with connect() as client:
        handle = client.job(job)
        artifact = _artifact_at(path, handle.artifacts(), handle.id)
        client.end_artifact_link(artifact, link)
    if as_json:
        print_json({"ended": link})
        return
    say("The link has ended.")


def end_links(as_json: AsJson = False) -> None:
    """End all links of `share`, also those of others. For administrators."""
    with connect() as client:
        client.end_artifact_links()
    if as_json:
        print_json({"ended": True})
        return
    say("All links have ended.")


def remove(job: Reference, paths: Paths = None, as_json: AsJson = False) -> None:
    """Remove artifacts of a job. Links to them open nothing any more."""
    with connect() as client:
        removed = client.remove_artifacts(client.job(job).id, paths or [])
    if as_json:
        print_page(removed)
        return
    say(f"{count(len(removed), 'artifact')} removed")


def _chosen(
    found: "Sequence[Artifact]", job_id: str, paths: Sequence[str]
) -> "list[Artifact]":
    """Those with these paths, or below such folders; NotFoundError."""
    if not found:
        raise _unknown(job_id, " artifacts")
    chosen = {artifact.id: artifact for artifact in found if not paths}
    for path in paths:
        folder = f"{path.rstrip('/')}/"
        own = [
            artifact
            for artifact in found
            if artifact.path == path or artifact.path.startswith(folder)
        ]
        if not own:
            raise _unknown(job_id, f" artifact {path!r}")
        chosen.update({artifact.id: artifact for artifact in own})
    return list(chosen.values())


def _artifact_at(path: str, found: "Sequence[Artifact]", job_id: str) -> "Artifact":
    """The one with this path; NotFoundError."""
    artifact = next((each for each in found if each.path == path), None)
    if artifact is None:
        raise _unknown(job_id, f" artifact {path!r}")
    return artifact


def _unknown(job_id: str, what: str) -> NotFoundError:
    return NotFoundError(
        f"Job {job_id} has no{what}.", f"`gpuyard artifacts list {job_id}` lists them."
    )


def _validity(text: str) -> float:
    try:
        valid_s = seconds(text)
    except ValueError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InvalidInputError.of("--for", fault, remedy) from None
    # Late: it needs pydantic, and `gpuyard --help` does not.
    from gpuyard.domain.artifacts import DAY_S, LONGEST_LINK_S

    if not 0 < valid_s <= LONGEST_LINK_S:
        days = int(LONGEST_LINK_S / DAY_S)
        raise InvalidInputError.of(
            "--for", f"is {text}", f"give more than 0 s and at most {days}d"
        )
    return valid_s


@contextmanager
def _bar(total: int) -> Generator[Callable[[int], object]]:
    """A bar on a terminal, which is told of bytes as they come."""
    if not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    with transfer_bar() as bar:
        task = bar.add_task("artifacts", total=total)
        yield lambda received: bar.advance(task, received)
