"""`/api/v1/users`, `/tokens` and `/whoami`: who may use the instance, and how they show
who they are.
"""

from typing import Any

from fastapi import Request
from pydantic import BaseModel

from gpuyard.controller.users import OWNER
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import ForbiddenError, RefusedError
from gpuyard.domain.users import (
    IssuedToken,
    NewToken,
    NewUser,
    Role,
    Token,
    User,
    UserChanges,
    WhoAmI,
)
from gpuyard.server.api_router import api_router
from gpuyard.server.auth import bearer_of
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import identity_of, visibility_of
from gpuyard.server.sign_in.token_sessions import LINK_LASTS_S

router = api_router(tag="users")


class UserPage(BaseModel):
    """Every user, by name."""

    items: list[User]
    next: str | None = None


class OwnerToken(BaseModel):
    """The new token of the instance's owner."""

    token: str


class SignInLink(BaseModel):
    """A link for one browser, and for how many seconds it is good."""

    url: str
    expires_in_s: float


class TokenPage(BaseModel):
    """Tokens, the oldest first."""

    items: list[Token]
    next: str | None = None


@router.get("/whoami")
async def who_am_i(request: Request, app_state: TheAppState) -> WhoAmI:
    """Who you are to this instance, and what you may do. `address`: that of the server
    for other machines (`url` in `[server]`); null if nobody has set it.
    """
    identity = identity_of(request.scope)
    access = app_state.controller.access
    return WhoAmI(
        user=identity.user,
        role=identity.role,
        projects=access.rights_by_project(identity),
        elsewhere=access.project_rights(identity, None),
        token=identity.token,
        address=app_state.settings.server.url,
    )


@router.post("/sign-in/links", status_code=201)
async def make_link(request: Request, app_state: TheAppState) -> SignInLink:
    """A link that opens the page and signs that browser in as you. It works once, and
    for a minute.
    """
    app_state.sign_in.check_carries_tokens()
    token = bearer_of(dict(request.scope["headers"]))
    identity = identity_of(request.scope)
    if token is None or identity.sender:
        raise RefusedError(
            "This request does not show the token with which to sign in.",
            "Ask as yourself, with a token.",
        )
    code = await app_state.sign_in.token_sessions.code(token, identity.user)
    url = f"{app_state.sign_in.url}/#code={code}"
    return SignInLink(url=url, expires_in_s=LINK_LASTS_S)


@router.get("/users")
async def list_users(request: Request, app_state: TheAppState) -> UserPage:
    """Every user. Administrators also see who they are to the provider, and whom it is
    to send.
    """
    users = app_state.controller.users.listing()
    if identity_of(request.scope).role is not Role.ADMINISTRATOR:
        visibility = visibility_of(request.scope, app_state.controller)
        users = [_seen(user, visibility) for user in users]
    return UserPage(items=users)


def _seen(user: User, visibility: Visibility) -> User:
    """A user as somebody sees it who is no administrator."""
    hidden: dict[str, Any] = {"issuer": None, "subject": None, "awaits_sign_in": False}
    hidden["email"] = None
    if not visibility.sees(user.project):
        hidden["project"] = None
    return user.model_copy(update=hidden)


@router.post("/users", status_code=201)
async def add_user(app_state: TheAppState, body: NewUser) -> User:
    """Add a user. It needs a token, or the socket of a shared workstation. With
    `project`, it is a service account of that project.
    """
    if body.project is not None:
        return await app_state.controller.projects.add_service_account(body)
    return await app_state.controller.users.add(body)


@router.patch("/users/{name}")
async def update_user(app_state: TheAppState, name: str, body: UserChanges) -> User:
    """Give a user another role, disable or enable it; from its next request on."""
    return await app_state.controller.users.update(name, body)


@router.get("/tokens")
async def list_tokens(request: Request, app_state: TheAppState) -> TokenPage:
    """Your tokens; as an administrator, those of all users."""
    identity = identity_of(request.scope)
    sees_all = identity.role is Role.ADMINISTRATOR
    users = app_state.controller.users
    return TokenPage(items=users.tokens_of(None if sees_all else identity.user))


@router.post("/tokens", status_code=201)
async def issue_token(
    request: Request, app_state: TheAppState, body: NewToken
) -> IssuedToken:
    """A new token, of yours or, as an administrator, of any user. It is shown here, and
    never again. It is worth no more than the one that you show, and lives no longer.
    """
    identity = identity_of(request.scope)
    return await app_state.controller.users.issue(body, identity)


@router.delete("/tokens/{token_id}")
async def revoke_token(
    request: Request, app_state: TheAppState, token_id: str
) -> Token:
    """Revoke a token; answers with what it was."""
    identity = identity_of(request.scope)
    return await app_state.controller.users.revoke(token_id, identity)


@router.post("/tokens/{token_id}/rotate", status_code=201)
async def rotate_token(
    request: Request, app_state: TheAppState, token_id: str
) -> IssuedToken:
    """Replace a token: it is revoked, and one with its user, name, role and end is
    issued. The new one is shown here, and never again.
    """
    identity = identity_of(request.scope)
    return await app_state.controller.users.rotate(token_id, identity)


@router.post("/tokens:rotate-owner", status_code=201)
async def rotate_owner_token(request: Request, app_state: TheAppState) -> OwnerToken:
    """Replace the token of the instance's owner: the file `token` in its home has a new
    one, and the old one is refused. Only the owner may ask, with the old one. Where
    several servers share a ledger, each has a token, and replaces its own.
    """
    if identity_of(request.scope) != OWNER:
        raise ForbiddenError(
            "Only the owner of the instance replaces its token.",
            "Type `gpuyard token rotate` as the owner, on the server's machine.",
        )
    _, _, shown = request.headers.get("Authorization", "").partition(" ")
    return OwnerToken(token=await app_state.rotate_token(shown.strip()))
