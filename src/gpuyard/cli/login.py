"""`gpuyard login`, `logout` and `whoami`: how people show who they are."""

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import clock, print_fields, print_json, short_id
from gpuyard.cli.session import connect
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    RefusedError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from gpuyard.client.login import Login
    from gpuyard.domain.users import WhoAmI

_WHICH_TOKEN = "give what `gpuyard user add` or `gpuyard token new` has shown"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (login, logout, whoami):
        app.command()(command)


def login(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Such as https://gpu.example.org.")
    ],
    browser: Annotated[
        bool | None,
        typer.Option(
            "--browser/--token",
            help="Sign in with a browser, or with a token. By default with a browser"
            " if the server can do that and you are at a terminal.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign in to the server of another machine or user: all commands use it from then
    on. You sign in with a browser, on any machine; or with a token, which is asked for,
    or read from standard input.
    """
    from gpuyard.client.connection import Address
    from gpuyard.client.login import Login, keep_login
    from gpuyard.client.sync import Client
    from gpuyard.config.paths import Home

    url = _checked_url(url)
    token = _sign_in_with_browser(url, browser) or _read_token()
    where = Login(url, token)
    with Client(Address(where.url, where.token)) as client:
        try:
            me = client.who_am_i()
        except UnauthorizedError:
            raise InvalidInputError.of(
                "token",
                f"is not accepted by {url}",
                f"{_WHICH_TOKEN}; it may have expired or been revoked",
            ) from None
    keep_login(Home.find(), where)
    if as_json:
        print_json(me)
    else:
        typer.echo(f"You are {_described(me)} at {where.url} now.")


def _checked_url(url: str) -> str:
    """The URL without a slash at its end; InvalidInputError if it is none."""
    if not re.fullmatch(r"https?://[^/\s]+\S*", url):
        raise InvalidInputError.of(
            "URL",
            f"is {url!r}",
            "give the address of the server, such as https://gpu.example.org",
        )
    return url.rstrip("/")


def _sign_in_with_browser(url: str, wanted: bool | None) -> str | None:
    """The token for who signs in with a browser; None if a token is to be asked for.
    RefusedError if a browser is wanted and the server cannot do that.
    """
    if wanted is False or (wanted is None and not sys.stdin.isatty()):
        return None
    from gpuyard.client.browser_login import BrowserLogin

    with BrowserLogin(url) as login:
        if not login.ways().openid:
            if wanted:
                raise RefusedError(
                    f"Nobody signs in to {url} with a browser.",
                    "Use a token: `gpuyard login --token`.",
                )
            return None
        code = login.begin()
        typer.echo(
            f"Open {code.verification_uri_complete} in a browser, and check that it"
            f" shows the code {code.user_code}.",
            err=True,
        )
        return login.wait(code)


def _read_token() -> str:
    if sys.stdin.isatty():
        text = str(typer.prompt("Token", hide_input=True, err=True))
    else:
        text = sys.stdin.readline()
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidInputError.of(
            "token",
            "is empty, or no token",
            _WHICH_TOKEN,
        )
    return token


def logout(
    revoke_token: Annotated[
        bool,
        typer.Option(
            "--revoke", help="End the token, too, if you signed in with one of yours."
        ),
    ] = False,
) -> None:
    """Use the server of this machine again. If you signed in with a browser, the token
    of that sign-in ends; one that you gave stays good, unless you give --revoke.
    """
    from gpuyard.client.login import forget_login, read_login
    from gpuyard.config.paths import Home

    home = Home.find()
    try:
        login = read_login(home)
    except InvalidInputError:  # nobody can use it
        login = None
    told = _end_sign_in(login, also_given=revoke_token) if login else ""
    was_signed_in = forget_login(home)
    typer.echo("You are signed out." if was_signed_in else "You were not signed in.")
    if told:
        typer.echo(told, err=True)


def _end_sign_in(login: "Login", *, also_given: bool) -> str:
    """Revoke the token of a login; what is to be said if it is still good."""
    from gpuyard.client.connection import Address
    from gpuyard.client.sync import Client

    try:
        with Client(Address(login.url, login.token)) as client:
            token = client.who_am_i().token
            if token is None:
                return "The token is that of the instance, and stays good."
            if token.kind != "command" and not also_given:
                return (
                    "The token that you gave stays good; to end it: gpuyard token"
                    f" revoke {short_id(token.id)}"
                )
            client.revoke_token(token.id)
    except UnauthorizedError:
        return ""  # it has ended already
    except GpuyardError as error:
        return f"The server was not told, so the token may still be good: {error}"
    return ""


def whoami(as_json: AsJson = False) -> None:
    """Show who you are to the server, and what you may do."""
    with connect() as client:
        me = client.who_am_i()
        url = client.address.url
    if as_json:
        print_json(me)
        return
    token = me.token
    print_fields(
        {
            "user": me.user or "the owner of the instance",
            "role": me.role,
            "server": url,
            "token": token and token.name,
            "expires": token and token.expires_at and clock(token.expires_at),
        }
    )


def _described(me: "WhoAmI") -> str:
    who = me.user or "the owner of the instance"
    return f"{who} ({me.role})"
