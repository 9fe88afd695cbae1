"""`/api/v1/sign-in` and `/auth`: how people sign in, in a browser, and commands through
a browser.
"""

import re
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError

from gpuyard.controller.users import Identity
from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    InvalidInputError,
    RefusedError,
    UnauthorizedError,
)
from gpuyard.domain.sign_in import DeviceCode, DeviceRequest, DeviceToken, SignInWays
from gpuyard.domain.validation import faults_of
from gpuyard.server.api_router import open_api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.callers import caller_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import IDENTITY_KEY
from gpuyard.server.sign_in import begun, devices, pages

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
open_router = open_api_router(tag="users")
commands = APIRouter(prefix="/auth", include_in_schema=False)


class _PageRoute(APIRoute):
    """A route whose errors are pages, for people."""

    def get_route_handler(
        self,
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_tell(request: Request) -> Response:
            try:
                return await handle(request)
            except GpuyardError as error:
                return pages.error_page(error)

        return handle_or_tell


browsers = APIRouter(prefix="/auth", include_in_schema=False, route_class=_PageRoute)


@open_router.get("/api/v1/sign-in")
async def ways(app_state: TheAppState) -> SignInWays:
    """How one can sign in here; needs no token."""
    return app_state.sign_in.ways


# --- browsers ---


@browsers.get("")
async def home(request: Request, app_state: TheAppState) -> HTMLResponse:
    """Who is signed in."""
    try:
        identity = await app_state.session_of(request.scope)
    except UnauthorizedError:  # it has expired
        identity = None
    return pages.home_page(identity) if identity else pages.signed_out_page()


@browsers.get("/login")
async def login(
    request: Request, app_state: TheAppState, next: str | None = None
) -> Response:
    """To the provider, and from there back to `next`, a path of this server."""
    sign_in = app_state.sign_in
    address, sealed = await sign_in.begin(begun.checked_next(next))
    answer = _redirect(address)
    name = sign_in.cookies.begun
    _set_cookie(answer, sign_in.cookies.header(name, sealed, begun.LASTS_S))
    return answer


@browsers.get("/callback")
async def callback(request: Request, app_state: TheAppState) -> Response:
    """The provider sends the browser back here."""
    sign_in = app_state.sign_in
    given = request.query_params
    error = given.get("error")
    if error is not None:
        why = "you were not admitted there" if error == "access_denied" else "it failed"
        raise UnauthorizedError(f"The provider says that {why}.", "Sign in again.")
    code = given.get("code", "")
    state = given.get("state", "")
    if not code or not state:
        raise InvalidInputError.of("code", "is missing", "sign in again")
    cookie = sign_in.cookies.read(_headers(request), sign_in.cookies.begun)
    user, next_path = await sign_in.finish(cookie, state, code, given.get("iss"))
    await _end_former_session(request, app_state)
    session = await sign_in.open_session(user.name)
    request.scope[IDENTITY_KEY] = Identity(user.name, user.role, session)
    answer = _redirect(next_path)
    cookies = sign_in.cookies
    lasts_s = sign_in.settings.session_s
    _set_cookie(answer, cookies.header(cookies.session, session.token, lasts_s))
    _set_cookie(answer, cookies.header(cookies.begun, "", 0))
    return answer


async def _end_former_session(request: Request, app_state: AppState) -> None:
    """Who signs in again has a new session, and the old one is worth nothing."""
    await _close(request, app_state, await _former(request, app_state))


async def _former(request: Request, app_state: AppState) -> Identity | None:
    """Who is signed in with the browser until now."""
    try:
        return await app_state.session_of(request.scope)
    except (UnauthorizedError, ForbiddenError):
        return None


async def _refuse_instead_of_another(
    request: Request, app_state: AppState, identity: Identity
) -> None:
    """RefusedError if somebody else is signed in: anybody can send a link of their own,
    and would get what the other one then submits.
    """
    former = await _former(request, app_state)
    if former and former.user != identity.user:
        raise RefusedError(
            f"This link is of {_called(identity)}, and you are signed in as"
            f" {_called(former)}.",
            "If you want to be signed in by it, sign out, and make another:"
            " `gpuyard page`.",
        )


def _called(identity: Identity) -> str:
    return identity.user or "the owner of the instance"


async def _close(
    request: Request, app_state: AppState, identity: Identity | None
) -> None:
    """Sign the browser of a request out."""
    sign_in = app_state.sign_in
    cookie = sign_in.cookies.read(_headers(request), sign_in.cookies.session) or ""
    if sign_in.token_sessions.open(cookie) is None:
        await sign_in.close_session(identity)
    await sign_in.token_sessions.end(cookie)


@browsers.post("/logout")
async def logout(request: Request, app_state: TheAppState) -> Response:
    """Sign the browser out."""
    cookies = app_state.sign_in.cookies
    cookies.check_own_page(request.method, _headers(request))
    identity = await _former(request, app_state)
    if identity:
        request.scope[IDENTITY_KEY] = identity
        await _close(request, app_state, identity)
    answer = _redirect(begun.HOME)
    _set_cookie(answer, cookies.header(cookies.session, "", 0))
    return answer


@commands.post("/token")
async def sign_in_with_token(request: Request, app_state: TheAppState) -> Response:
    """Sign a browser in: with `token` of a form, or with `code`, from a link."""
    sign_in = app_state.sign_in
    cookies = sign_in.cookies
    cookies.check_own_page(request.method, _headers(request))
    sign_in.check_carries_tokens()
    fields = await _form(request)
    token = fields.get("token", "").strip()
    if "code" in fields:
        token = await sign_in.token_sessions.redeem(fields["code"]) or ""
    identity = await app_state.identify(token)
    if identity is None and "code" in fields:
        raise UnauthorizedError(
            "This link is used up, or too old.", "Make another: `gpuyard page`."
        )
    if identity is None:
        raise UnauthorizedError(
            "Nobody has this token.",
            "The owner's is in the file `token` in the server's $GPUYARD_HOME; others"
            " get one from `gpuyard token new`.",
        )
    if "code" in fields:
        await _refuse_instead_of_another(request, app_state, identity)
    await _end_former_session(request, app_state)
    request.scope[IDENTITY_KEY] = identity
    answer = Response(status_code=204)
    sealed = await sign_in.token_sessions.seal(token, identity.user)
    lasts_s = sign_in.settings.session_s
    _set_cookie(answer, cookies.header(cookies.session, sealed, lasts_s))
    return answer


# --- commands ---


@commands.post("/device")
async def ask(request: Request, app_state: TheAppState) -> DeviceCode:
    """A command wants to sign in; needs no token. The fields are those of a form."""
    sign_in = app_state.sign_in
    _ = sign_in.provider
    fields = await _form(request)
    try:
        asked = DeviceRequest(host=fields.get("host", ""))
    except ValidationError as error:
        raise InvalidInputError(faults_of(error, DeviceRequest)) from None
    caller = caller_of(request.scope)
    # Behind a proxy that is not trusted, everybody has its address.
    is_known = app_state.settings.server.url is None or caller.is_forwarded
    codes = sign_in.devices.ask(
        _host_name(asked.host),
        caller.address if is_known else "",
        caller.key if is_known else None,
    )
    page = f"{sign_in.url}/auth/device"
    return DeviceCode(
        device_code=codes.device_code,
        user_code=codes.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?user_code={codes.user_code}",
        expires_in=int(devices.LASTS_S),
        interval=int(devices.INTERVAL_S),
    )


@commands.post("/device/token")
async def token(request: Request, app_state: TheAppState) -> Response:
    """The token of a command that somebody has signed in; until then, an error of RFC
    8628.
    """
    sign_in = app_state.sign_in
    fields = await _form(request)
    try:
        grant = sign_in.devices.redeem(fields.get("device_code", ""))
        issued = await sign_in.token_for(grant)
    except devices.DeviceError as error:
        return JSONResponse({"error": error.code}, 400)
    except ForbiddenError:
        return JSONResponse({"error": "access_denied"}, 400)
    request.scope[IDENTITY_KEY] = app_state.controller.users.identify(issued.token)
    lasts_s = int(sign_in.settings.command_s)
    answer = DeviceToken(access_token=issued.token, expires_in=lasts_s)
    return JSONResponse(answer.model_dump())


@browsers.get("/device")
async def look(
    request: Request, app_state: TheAppState, user_code: str | None = None
) -> Response:
    """Shows whoever is signed in what waits under a code."""
    identity = await _signed_in(request, app_state)
    if identity is None:
        here = "/auth/device"
        if user_code:
            here = f"{here}?user_code={quote(user_code[:20], safe='')}"
        return _redirect(f"/auth/login?next={quote(here, safe='')}")
    if not user_code:
        return pages.code_page()
    grant = app_state.sign_in.devices.look(user_code, identity.user or "")
    return pages.confirm_page(identity, devices.shown_code(user_code), grant)


@browsers.post("/device/confirm")
async def confirm(request: Request, app_state: TheAppState) -> Response:
    """Whoever is signed in says whether it is their command."""
    sign_in = app_state.sign_in
    sign_in.cookies.check_own_page(request.method, _headers(request))
    identity = await app_state.session_of(request.scope)
    if identity is None:
        raise UnauthorizedError("You are not signed in.", "Sign in, and go back.")
    request.scope[IDENTITY_KEY] = identity
    fields = await _form(request)
    allow = fields.get("answer") == "yes"
    code = fields.get("user_code", "")
    user = app_state.controller.users.named(identity.user or "")
    if user is None:
        raise ForbiddenError("There is no such user.", "Ask an administrator.")
    grant = sign_in.devices.decide(code, user.name, allow=allow, subject=user.subject)
    return pages.decided_page(grant)


async def _signed_in(request: Request, app_state: TheAppState) -> Identity | None:
    try:
        return await app_state.session_of(request.scope)
    except UnauthorizedError:  # it has expired
        return None


# --- requests and answers ---


def _host_name(text: str) -> str:
    """What a command calls its machine, if that can be a name: a page shows it to whom
    the command wants to be.
    """
    return text if _HOST_NAME.fullmatch(text) else ""


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; of several of one name, the last."""
    body = await request.body()
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=20))
    except ValueError:
        raise InvalidInputError.of(
            "(body)", "is no form", "send application/x-www-form-urlencoded"
        ) from None


def _headers(request: Request) -> dict[bytes, bytes]:
    return dict(request.scope["headers"])


def _redirect(address: str) -> Response:
    return Response(status_code=303, headers={"Location": address})


def _set_cookie(answer: Response, header: str) -> None:
    answer.raw_headers.append((b"set-cookie", header.encode("ascii")))
