"""The methods of `AsyncClient` for users and tokens."""

from typing import Any, TypeVar

from gpuyard.client import user_calls
from gpuyard.client.calls import Call
from gpuyard.domain.users import IssuedToken, Role, Token, User, WhoAmI

T = TypeVar("T")


class AsyncUserMethods:
    """As those of `Client`, awaited."""

    async def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    async def who_am_i(self) -> WhoAmI:
        """Who the server takes you for, and what you may do."""
        return await self.call(user_calls.who_am_i())

    async def sign_in_link(self) -> str:
        """A link that signs one browser in as you, within a minute."""
        return await self.call(user_calls.sign_in_link())

    async def users(self) -> list[User]:
        """Every user, by name."""
        return await self.call(user_calls.users())

    async def add_user(self, name: str, role: str = Role.MEMBER, **fields: Any) -> User:
        """Add a user; RefusedError if there is one of this name."""
        return await self.call(user_calls.add_user(name, {"role": role, **fields}))

    async def update_user(self, name: str, **changes: Any) -> User:
        """Give a user another `role`, or make it `disabled`; NotFoundError."""
        return await self.call(user_calls.update_user(name, changes))

    async def tokens(self) -> list[Token]:
        """Your tokens; as an administrator, those of all users."""
        return await self.call(user_calls.tokens())

    async def issue_token(self, **fields: Any) -> IssuedToken:
        """A new token: of `user`, with a `name`, worth no more than `role`, for
        `expires_in_s`. It is given once; keep it.
        """
        return await self.call(user_calls.issue_token(fields))

    async def revoke_token(self, token_id: str) -> Token:
        """Revoke a token; what it was. NotFoundError."""
        return await self.call(user_calls.revoke_token(token_id))

    async def rotate_token(self, token_id: str) -> IssuedToken:
        """Revoke a token, and get one with its user, name, role and end."""
        return await self.call(user_calls.rotate_token(token_id))

    async def rotate_owner_token(self) -> str:
        """Replace the token of the instance's owner; the new one. ForbiddenError for
        everybody else.
        """
        return await self.call(user_calls.rotate_owner_token())
