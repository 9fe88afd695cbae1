"""Who signs in through an OpenID provider becomes a user here.

A person is known by the issuer and the subject. What the provider calls a person may
change, and may be what another one was called before; so a name alone never makes
anybody a user that someone else is, or that an administrator has not opened for it.
"""

from gpuyard.controller.users import Users
from gpuyard.domain.errors import ForbiddenError, quoted
from gpuyard.domain.sign_in import Person
from gpuyard.domain.users import (
    IssuedToken,
    NewUser,
    Role,
    Token,
    TokenKind,
    User,
    is_user_name,
)

# So many browsers, and so many commands, of one user stay signed in: the newest.
MOST_SIGNED_IN = 20


class SignIns:
    """Signs people in and out."""

    def __init__(self, users: Users) -> None:
        self._users = users

    async def admit(self, person: Person) -> User:
        """The user that this person is; perhaps a new one. ForbiddenError."""
        user = self._users.of_subject(person.issuer, person.subject)
        if user is None:
            return await self._admit_first_time(person)
        if user.disabled:
            raise ForbiddenError(
                f"The user {user.name} is disabled.", "Ask an administrator."
            )
        return await self._with_role(user, person)

    async def _admit_first_time(self, person: Person) -> User:
        """Someone of whom nothing is known yet, but perhaps the name."""
        if not is_user_name(person.name):
            raise ForbiddenError(
                f"The provider calls you {quoted(person.name)}, and no user can have"
                " this name: up to 32 small letters, digits, _, . and -.",
                "Ask an administrator to choose another claim: `name_claim` in"
                " `[sign_in.openid]`.",
            )
        user = self._users.named(person.name)
        if user is None:
            return await self._add(person)
        if user.disabled or not user.awaits_sign_in:
            raise ForbiddenError(
                f"There is a user {user.name} already, and it is not known that you"
                " are it.",
                "Ask an administrator: `gpuyard user update"
                f" {user.name} --sign-in` lets the next person of this name be it.",
            )
        linked = user.model_copy(
            update={
                "issuer": person.issuer,
                "subject": person.subject,
                "awaits_sign_in": False,
            }
        )
        return await self._with_role(linked, person, is_new=True)

    async def _add(self, person: Person) -> User:
        role = person.role or person.default_role
        if role is None:
            raise ForbiddenError(
                f"Nobody has added the user {person.name}, and none of your groups"
                " gives a role here.",
                f"Ask an administrator: `gpuyard user add {person.name} --sign-in`.",
            )
        return await self._users.add(
            NewUser(name=person.name, role=role),
            issuer=person.issuer,
            subject=person.subject,
            role_from_provider=person.role is not None,
            email=person.email,
        )

    async def _with_role(
        self, user: User, person: Person, *, is_new: bool = False
    ) -> User:
        """The user with the role that its groups give now. Who had its role of a group
        that it has left does not keep it, in whatever tokens there are.
        """
        role = person.role
        if role is None and user.role_from_provider:
            role = person.default_role
            if role is None:
                lesser = user.model_copy(update={"role": Role.VIEWER})
                await self._users.change(user.name, lesser)
                await self._users.sign_out_everywhere(user.name)
                raise ForbiddenError(
                    f"None of your groups gives {user.name} a role here any more.",
                    "Ask an administrator.",
                )
        changed = user.model_copy(
            update={
                "role": role or user.role,
                "role_from_provider": person.role is not None,
                "email": person.email,
            }
        )
        if is_new or changed != user:
            await self._users.change(user.name, changed)
        return changed

    async def open(
        self, user: str, kind: TokenKind, name: str, lasts_s: float
    ) -> IssuedToken:
        """A token for a browser or a command of this user; those that have expired go,
        and the oldest if there are too many. ForbiddenError if it is disabled.
        """
        now = self._users.now()
        signed_in: list[Token] = []
        for token in self._users.tokens_of(user):
            if token.kind is TokenKind.TOKEN:
                continue
            if token.expires_at is not None and token.expires_at <= now:
                await self._users.revoke_token(token)
            elif token.kind is kind:
                signed_in.append(token)
        too_many = max(len(signed_in) + 1 - MOST_SIGNED_IN, 0)
        for token in signed_in[:too_many]:
            await self._users.revoke_token(token)
        return await self._users.issue_as(user, name, kind, now + lasts_s)
