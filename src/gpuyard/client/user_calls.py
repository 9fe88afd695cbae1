"""Calls about users and their tokens; see `calls`."""

from gpuyard.client.answers import items_of
from gpuyard.client.calls import Call, Json
from gpuyard.client.segments import segment
from gpuyard.domain.users import IssuedToken, Token, User, WhoAmI


def who_am_i() -> Call[WhoAmI]:
    """Who the server takes you for."""
    return Call("GET", "/api/v1/whoami", WhoAmI.model_validate)


def sign_in_link() -> Call[str]:
    """A link that signs a browser in."""
    return Call("POST", "/api/v1/sign-in/links", lambda answer: answer["url"])


def users() -> Call[list[User]]:
    """Every user, by name."""
    return Call("GET", "/api/v1/users", items_of(User))


def add_user(name: str, fields: Json) -> Call[User]:
    """Add a user."""
    body = {"name": name, **fields}
    return Call("POST", "/api/v1/users", User.model_validate, body=body)


def update_user(name: str, changes: Json) -> Call[User]:
    """Change `role` or `disabled`."""
    path = f"/api/v1/users/{segment(name)}"
    read = User.model_validate
    return Call("PATCH", path, read, body=dict(changes), done_once=True)


def tokens() -> Call[list[Token]]:
    """The tokens that you may see, the oldest first."""
    return Call("GET", "/api/v1/tokens", items_of(Token))


def issue_token(fields: Json) -> Call[IssuedToken]:
    """A new token."""
    body = dict(fields)
    return Call("POST", "/api/v1/tokens", IssuedToken.model_validate, body=body)


def revoke_token(token_id: str) -> Call[Token]:
    """Revoke a token; what it was."""
    path = f"/api/v1/tokens/{segment(token_id)}"
    return Call("DELETE", path, Token.model_validate)


def rotate_token(token_id: str) -> Call[IssuedToken]:
    """Replace a token by a new one."""
    path = f"/api/v1/tokens/{segment(token_id)}/rotate"
    return Call("POST", path, IssuedToken.model_validate)


def rotate_owner_token() -> Call[str]:
    """Replace the token of the instance's owner; the new one."""
    return Call("POST", "/api/v1/tokens:rotate-owner", lambda a: str(a["token"]))
