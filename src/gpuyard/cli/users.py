"""`gpuyard user` and `token`: who may use an instance."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import (
    clock,
    print_json,
    print_page,
    print_table,
    short_id,
)
from gpuyard.cli.session import connect
from gpuyard.domain.errors import (
    InvalidInputError,
)
from gpuyard.domain.units import seconds

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.users import IssuedToken, User

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
RoleOption = Annotated[
    str | None,
    typer.Option(help="viewer, member, maintainer or administrator."),
]
ExpiresOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long the token is good, such as 90d."),
]
SignInOption = Annotated[
    bool | None,
    typer.Option(
        "--sign-in/--no-sign-in",
        help="Whether the next person whom the provider calls so becomes this user; who"
        " was it before is no longer.",
    ),
]
_COMMAND_LINE = "gpuyard login"
_ONLY_HERE = (
    "Only this machine has that address. For others, set `url` in [server], where they"
    " reach the server."
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    user = typer.Typer(
        help="Say who may use this instance, and what they may do.",
        no_args_is_help=True,
    )
    for command in (add, update, disable, enable):
        user.command()(command)
    user.command("list")(list_users)
    app.add_typer(user, name="user")
    token = typer.Typer(
        help="Issue, replace and revoke tokens, with which users sign in.",
        no_args_is_help=True,
    )
    token.command("new")(new_token)
    token.command("list")(list_tokens)
    token.command()(revoke)
    token.command()(rotate)
    app.add_typer(token, name="token")


# --- users ---


def add(
    name: UserName,
    role: RoleOption = None,
    expires: ExpiresOption = None,
    sign_in: Annotated[
        bool,
        typer.Option(
            "--sign-in",
            help="It signs in through the provider; no token is issued.",
        ),
    ] = False,
    project: Annotated[
        str | None,
        typer.Option(
            help="A service account of this project, with its role there: for programs."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a user, by default as a member, and issue its first token, which is shown
    once.
    """
    expires_in_s = _expiry(expires)
    given = {"awaits_sign_in": sign_in, **({"project": project} if project else {})}
    with connect() as client:
        user = client.add_user(name, role or "member", **given)
        if sign_in:
            _print_user(user, _awaited(user, _address(client)), as_json)
            return
        token = client.issue_token(user=name, name="first", expires_in_s=expires_in_s)
        url = _address(client)
    if as_json:
        print_json({**user.model_dump(mode="json"), "token": token.token})
        return
    what = f"service account of {project}" if project else user.role
    typer.echo(f"{user.name} is a {what} now. This token is shown only once:\n")
    _show_token(token, url)


def list_users(as_json: AsJson = False) -> None:
    """List the users and their roles."""
    with connect() as client:
        found = client.users()
    if as_json:
        print_page(found)
        return
    rows = [
        (
            user.name,
            user.role,
            "disabled" if user.disabled else None,
            user.project,
            _sign_in_of(user),
            clock(user.created_at),
        )
        for user in found
    ]
    print_table(
        ("USER", "ROLE", "STATE", "PROJECT", "SIGN-IN", "ADDED"),
        rows,
        empty="Nobody but the owner of this instance: add users with `gpuyard user add"
        " NAME`.",
    )


def update(
    name: UserName,
    role: RoleOption = None,
    sign_in: SignInOption = None,
    as_json: AsJson = False,
) -> None:
    """Give a user another role, or let somebody else sign in as it. It counts from its
    next request on.
    """
    given = {"role": role, "awaits_sign_in": sign_in}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise InvalidInputError.of("role", "is missing", "give --role member")
    with connect() as client:
        user = client.update_user(name, **changes)
        url = _address(client)
    text = _awaited(user, url) if sign_in else f"{user.name} is a {user.role} now"
    _print_user(user, text, as_json)


def _address(client: "Client") -> str:
    """Where others reach the server, with a word of warning if nobody knows that."""
    from urllib.parse import urlsplit

    from gpuyard.config.dialling import is_loopback

    url = client.address.url
    if not is_loopback(urlsplit(url).hostname):
        return url
    return client.who_am_i().address or f"{url}\n{_ONLY_HERE}"


def _awaited(user: "User", url: str) -> str:
    return (
        f"{user.name} is a {user.role}, and signs in with a browser: {_COMMAND_LINE}"
        f" {url}"
    )


def _sign_in_of(user: "User") -> str | None:
    if user.awaits_sign_in:
        return "awaited"
    return user.issuer


def disable(name: UserName, as_json: AsJson = False) -> None:
    """Refuse a user and its tokens. Its jobs run on."""
    with connect() as client:
        user = client.update_user(name, disabled=True)
    _print_user(user, f"{user.name} is disabled", as_json)


def enable(name: UserName, as_json: AsJson = False) -> None:
    """Admit a user again that was disabled."""
    with connect() as client:
        user = client.update_user(name, disabled=False)
    _print_user(user, f"{user.name} is enabled", as_json)


def _print_user(user: "User", text: str, as_json: bool) -> None:
    if as_json:
        print_json(user)
    else:
        typer.echo(text)


# --- tokens ---


def new_token(
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Whose; by default, yours.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="What it is for, such as laptop.")
    ] = "token",
    role: RoleOption = None,
    expires: ExpiresOption = None,
    as_json: AsJson = False,
) -> None:
    """Issue a token, which is shown once. With --role it is worth less than its
    user.
    """
    fields = {
        "user": user,
        "name": name,
        "role": role,
        "expires_in_s": _expiry(expires),
    }
    with connect() as client:
        token = client.issue_token(**fields)
        url = _address(client)
    if as_json:
        print_json(token)
        return
    typer.echo("This token is shown only once:\n")
    _show_token(token, url)


def _show_token(token: "IssuedToken", url: str) -> None:
    typer.echo(f"  {token.token}\n")
    until = f", good until {clock(token.expires_at)}" if token.expires_at else ""
    typer.echo(f"It is {token.user}'s{until}. To use it: {_COMMAND_LINE} {url}")


def list_tokens(as_json: AsJson = False) -> None:
    """List your tokens; as an administrator, those of all users."""
    with connect() as client:
        found = client.tokens()
    if as_json:
        print_page(found)
        return
    rows = [
        (
            short_id(token.id),
            token.user,
            token.name,
            token.kind,
            token.role,
            clock(token.created_at),
            clock(token.expires_at) if token.expires_at else None,
            clock(token.used_at) if token.used_at else None,
        )
        for token in found
    ]
    print_table(
        ("TOKEN", "USER", "NAME", "KIND", "ROLE", "ISSUED", "EXPIRES", "LAST USED"),
        rows,
        empty="There are no tokens: issue one with `gpuyard token new --user NAME`.",
    )


def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="TOKEN", help="Its id, or the end of that.")
    ],
    as_json: AsJson = False,
) -> None:
    """Revoke a token. It counts from the next request on."""
    with connect() as client:
        token = client.revoke_token(token_id)
    if as_json:
        print_json(token)
    else:
        typer.echo(f"the token {token.name!r} of {token.user} is revoked")


def rotate(
    token_id: Annotated[
        str | None,
        typer.Argument(
            metavar="TOKEN",
            help="Its id, or the end of that. By default, the one that you use.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace a token: the old one is refused from the next request on, and the new
    one, with the same user, name, role and end, is shown once. The owner of the
    instance replaces the token in its home.
    """
    with connect() as client:
        shown = client.who_am_i().token
        if token_id is None and shown is None:
            text = client.rotate_owner_token()
            _tell_owner(text, _keep_in_login(client, text), as_json)
            return
        # While our own token still counts.
        url = _address(client)
        issued = client.rotate_token(token_id or (shown.id if shown else ""))
        replaces_own = shown is not None and shown.id.endswith(token_id or shown.id)
        is_kept = replaces_own and _keep_in_login(client, issued.token)
    if as_json:
        print_json(issued)
        return
    typer.echo("The old token is refused now. The new one is shown only once:\n")
    _show_token(issued, url)
    if is_kept:
        typer.echo("The commands of this home use it already.")


def _keep_in_login(client: "Client", text: str) -> bool:
    """Put the token that replaces ours into the login of this home, if we have ours
    from there; whether it is there.
    """
    from gpuyard.client.login import Login, keep_login, read_login
    from gpuyard.config.paths import Home

    home = Home.find()
    login = read_login(home)
    if login is None or login.token != client.address.token:
        return False
    keep_login(home, Login(login.url, text))
    return True


def _tell_owner(text: str, is_kept: bool, as_json: bool) -> None:
    if as_json:
        print_json({"token": text})
        return
    typer.echo("The token of the instance's owner is replaced; the old one is refused.")
    if os.environ.get("GPUYARD_TOKEN"):
        typer.echo(f"The new one is shown only once:\n\n  {text}\n")
    elif is_kept:
        typer.echo("The commands of this home use the new one already.")


def _expiry(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError as error:
        raise InvalidInputError.of("expires", str(error)) from None
