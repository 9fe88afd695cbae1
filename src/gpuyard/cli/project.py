"""`gpuyard project`: registered projects, and who is in them."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import clock, print_fields, print_json, print_page, print_table
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from gpuyard.domain.projects import Project

ProjectName = Annotated[
    str,
    typer.Argument(
        metavar="PROJECT",
        help="The project's name.",
        autocompletion=suggest.projects,
    ),
]
UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
_SHOWN_MEMBERS = 5


def register(app: typer.Typer) -> None:
    """Add the commands."""
    project = typer.Typer(
        help="Say who submits jobs to a project, and who sees them.",
        no_args_is_help=True,
    )
    for command in (add, show, update):
        project.command()(command)
    project.command("list")(list_projects)
    member = typer.Typer(help="Say who is in a project.", no_args_is_help=True)
    member.command("add")(add_member)
    member.command("remove")(remove_member)
    project.add_typer(member, name="member")
    app.add_typer(project, name="project")


def add(
    name: ProjectName,
    private: Annotated[
        bool, typer.Option("--private", help="Only its members see what is of it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register a project: from then on, only its members submit jobs to it."""
    with connect() as client:
        project = client.add_project(name, private=private)
    how = "registered, and private" if private else "registered"
    remedy = f"`gpuyard project member add {shlex.quote(name)} USER` adds members"
    _tell(project, f"the project {name} is {how}; {remedy}", as_json)


def list_projects(as_json: AsJson = False) -> None:
    """List the registered projects that you may see."""
    with connect() as client:
        found = client.projects()
    if as_json:
        print_page(found)
        return
    rows = [
        (project.name, _kind(project), _members(project), clock(project.created_at))
        for project in found
    ]
    print_table(
        ("PROJECT", "KIND", "MEMBERS", "ADDED"),
        rows,
        empty="No project is registered: `gpuyard project add NAME` registers one.",
    )


def show(name: ProjectName, as_json: AsJson = False) -> None:
    """Show a project and its members."""
    with connect() as client:
        project = client.project(name)
    if as_json:
        print_json(project)
        return
    members = [f"{member.user} ({member.role})" for member in project.members]
    print_fields(
        {
            "project": project.name,
            "kind": _kind(project),
            "added": clock(project.created_at),
            "members": ", ".join(members) or "nobody",
        }
    )


def update(
    name: ProjectName,
    private: Annotated[
        bool | None,
        typer.Option("--private/--open", help="Who sees it: its members, or all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a project private, or open. It counts from the next request on."""
    if private is None:
        raise InvalidInputError.of("private", "is missing", "give --private or --open")
    with connect() as client:
        project = client.update_project(name, private=private)
    _tell(project, f"the project {name} is {_kind(project)} now", as_json)


def add_member(
    name: ProjectName,
    user: UserName,
    role: Annotated[
        str, typer.Option(help="viewer, member or maintainer, in this project.")
    ] = "member",
    as_json: AsJson = False,
) -> None:
    """Make a user a member of a project, or give it another role there."""
    with connect() as client:
        project = client.set_project_member(name, user, role)
    _tell(project, f"{user} is a {role} of the project {name} now", as_json)


def remove_member(name: ProjectName, user: UserName, as_json: AsJson = False) -> None:
    """Remove a user from a project. Its jobs stay there, and run on."""
    with connect() as client:
        project = client.remove_project_member(name, user)
    _tell(project, f"{user} is no member of the project {name} any more", as_json)


def _kind(project: "Project") -> str:
    return "private" if project.private else "open"


def _members(project: "Project") -> str:
    names = [member.user for member in project.members]
    more = len(names) - _SHOWN_MEMBERS
    rest = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:_SHOWN_MEMBERS]) + rest


def _tell(project: "Project", text: str, as_json: bool) -> None:
    if as_json:
        print_json(project)
    else:
        typer.echo(text)
