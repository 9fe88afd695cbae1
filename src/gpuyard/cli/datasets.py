"""`gpuyard datasets`: data that jobs read, in versions that never change."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.dataset_catalogue import CatalogueOption, catalogue, fetch
from gpuyard.cli.output import (
    ago,
    count,
    print_fields,
    print_json,
    print_page,
    print_table,
    say,
    size,
    transfer_bar,
)
from gpuyard.cli.session import connect
from gpuyard.domain.dataset_names import DatasetReference, shown_project
from gpuyard.domain.errors import InvalidInputError, NotFoundError, quoted

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.datasets import Dataset, DatasetVersion

Reference = Annotated[
    str, typer.Argument(metavar="DATASET", help="[PROJECT/]NAME[@VERSION].")
]
Name = Annotated[str, typer.Argument(metavar="DATASET", help="[PROJECT/]NAME.")]
ProjectOption = Annotated[
    str | None, typer.Option(help="The project that it belongs to.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    datasets = typer.Typer(
        help="Upload data for jobs; list, share and remove it.", no_args_is_help=True
    )
    datasets.command("add")(add)
    datasets.command("catalogue")(catalogue)
    datasets.command("list")(listing)
    datasets.command("show")(show)
    datasets.command("versions")(versions)
    datasets.command("share")(share)
    datasets.command("rm")(remove)
    app.add_typer(datasets, name="datasets")


def add(
    name: Name,
    path: Annotated[
        Path | None,
        typer.Argument(help="A file or a folder; without one, as in the catalogue."),
    ] = None,
    project: ProjectOption = None,
    catalogue_file: CatalogueOption = None,
    as_json: AsJson = False,
) -> None:
    """Upload a file or a folder as the next version of a dataset. Only what the server
    does not have is sent: after an interruption, the same command goes on. Without a
    path, it is a data set of the catalogue, which is fetched here first.
    """
    reference = _named(name, project)
    fetched = None if path else fetch(reference.name, catalogue_file)
    with connect() as client:
        place = path or (fetched and fetched.path)
        assert place
        dataset, is_new = _upload(client, reference, place)
    if fetched:
        fetched.remove()
    if as_json:
        print_json(dataset)
        return
    newest = dataset.versions[0]
    text = (
        f"{_shown(dataset, newest)}: {count(newest.files, 'file')}, {size(newest.size)}"
    )
    say(text if is_new else f"{text}; it has not changed")


def _upload(
    client: "Client", reference: DatasetReference, path: Path
) -> "tuple[Dataset, bool]":
    """Upload, with a bar on a terminal; the dataset, and whether it has a new
    version.
    """
    project = shown_project(reference.project)
    before = _newest_before(client, reference.name, project)
    if sys.stderr.isatty():
        with transfer_bar() as bar:
            task = bar.add_task(reference.name, total=None)
            dataset = client.add_dataset(
                reference.name,
                path,
                project=project,
                tell=lambda stored, total: bar.update(
                    task, completed=stored, total=total
                ),
            )
    else:
        dataset = client.add_dataset(reference.name, path, project=project)
    return dataset, dataset.versions[0].number != before


def _newest_before(client: "Client", name: str, project: str) -> int:
    try:
        found = client.dataset(name, project).versions
    except NotFoundError:
        return 0
    return found[0].number if found else 0


def listing(project: ProjectOption = None, as_json: AsJson = False) -> None:
    """List the datasets that you may use."""
    with connect() as client:
        found = client.datasets(project)
    if as_json:
        print_page(found)
        return
    rows = [
        (
            f"{one.project}/{one.name}",
            one.versions[0].number if one.versions else "-",
            one.versions[0].files if one.versions else "-",
            size(one.versions[0].size) if one.versions else "-",
            ago(one.versions[0].created_at) if one.versions else "-",
            ", ".join(one.shared_with) or "-",
        )
        for one in found
    ]
    columns = ("DATASET", "VERSION", "FILES", "SIZE", "ADDED", "SHARED WITH")
    empty = "No datasets. `gpuyard datasets add NAME PATH` adds one."
    print_table(columns, rows, empty=empty)


def show(
    name: Reference, project: ProjectOption = None, as_json: AsJson = False
) -> None:
    """Show a dataset and the files of a version, the newest unless you name one."""
    reference = _named(name, project, with_version=True)
    with connect() as client:
        dataset = client.dataset(reference.name, shown_project(reference.project))
        version = _version(dataset, reference.version)
        files = list(
            client.dataset_files(dataset.name, version.number, dataset.project)
        )
    if as_json:
        print_json(
            {
                **dataset.model_dump(mode="json"),
                "version": version.model_dump(mode="json"),
                "files": [file.model_dump(mode="json") for file in files],
            }
        )
        return
    print_fields(
        {
            "dataset": _shown(dataset, version),
            "owner": dataset.owner,
            "shared with": ", ".join(dataset.shared_with) or None,
            "size": size(version.size),
            "added": ago(version.created_at),
            "digest": version.digest,
        }
    )
    say()
    rows = [(file.path, size(file.size)) for file in files]
    print_table(("FILE", "SIZE"), rows, empty="No files.")


def versions(
    name: Name, project: ProjectOption = None, as_json: AsJson = False
) -> None:
    """List the versions of a dataset, the newest first."""
    reference = _named(name, project)
    with connect() as client:
        dataset = client.dataset(reference.name, shown_project(reference.project))
    if as_json:
        print_page(dataset.versions)
        return
    rows = [
        (
            one.number,
            one.files,
            size(one.size),
            ago(one.created_at),
            one.created_by or "-",
            one.digest[:12],
        )
        for one in dataset.versions
    ]
    columns = ("VERSION", "FILES", "SIZE", "ADDED", "BY", "DIGEST")
    print_table(columns, rows, empty="No versions.")


def share(
    name: Name,
    other: Annotated[
        str, typer.Argument(metavar="WITH", help="The project that may use it.")
    ],
    project: ProjectOption = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="It may use it no longer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let another project use a dataset: its members see it, and its jobs read it."""
    reference = _named(name, project)
    if "/" in other:
        fault = f"{quoted(other)} has a slash"
        raise InvalidInputError.of("WITH", fault, "name a project")
    with connect() as client:
        dataset = client.share_dataset(
            reference.name, other, shown_project(reference.project), shared=not stop
        )
    if as_json:
        print_json(dataset)
        return
    projects = ", ".join(dataset.shared_with) or "no other project"
    say(f"{dataset.project}/{dataset.name} is shared with {projects}")


def remove(
    name: Reference, project: ProjectOption = None, as_json: AsJson = False
) -> None:
    """Remove a dataset, or the version that you name. Jobs that wait for it fail."""
    reference = _named(name, project, with_version=True)
    with connect() as client:
        before = client.remove_dataset(
            reference.name, reference.version, shown_project(reference.project)
        )
    if as_json:
        print_json(before)
        return
    what = DatasetReference(before.project, before.name, reference.version)
    say(f"{what} is removed")


def _named(
    text: str, project: str | None, *, with_version: bool = False
) -> DatasetReference:
    """What was named; InvalidInputError."""
    try:
        reference = DatasetReference.parse(text)
    except ValueError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InvalidInputError.of("DATASET", fault, remedy) from None
    if reference.path is not None:
        raise InvalidInputError.of(
            "DATASET", f"{text} names a path", "write it without the path"
        )
    if reference.version is not None and not with_version:
        raise InvalidInputError.of(
            "DATASET", f"{text} names a version", f"write {reference.name} alone"
        )
    if reference.project and project and reference.project != project:
        raise InvalidInputError.of(
            "--project", f"is {project}, and {text} is of another", "name one project"
        )
    return reference._replace(project=reference.project or project)


def _version(dataset: "Dataset", number: int | None) -> "DatasetVersion":
    for version in dataset.versions:
        if number in (None, version.number):
            return version
    name = f"{dataset.project}/{dataset.name}"
    raise NotFoundError(
        f"{name} has no version {number if number is not None else 'yet'}.",
        f"`gpuyard datasets versions {name}` lists them.",
    )


def _shown(dataset: "Dataset", version: "DatasetVersion") -> str:
    return str(DatasetReference(dataset.project, dataset.name, version.number))
