"""The users of an instance and their tokens: in memory, so that a request is admitted
without a read of the ledger.
"""

import asyncio
import pwd
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.config.proof import digest_of, key_id
from gpuyard.controller.core import Core
from gpuyard.controller.user_refusals import (
    refuse_disabled,
    refuse_of_service_account,
    refuse_role,
    refuse_rotation,
    unknown_user,
)
from gpuyard.domain.errors import (
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
)
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.ids import new_id
from gpuyard.domain.users import (
    TOKEN_PREFIX,
    IssuedToken,
    NewToken,
    NewUser,
    Role,
    Token,
    TokenKind,
    User,
    UserChanges,
)

# Of a server that does not lead, what it has read is no older than this.
_READ_AGAIN_S = 2.0
# So many tokens a user has at most: all stay in memory.
MOST_TOKENS = 100
# An end of an id that is shorter is a slip of the finger.
_SHORTEST_TAIL = 4
# So often it is written, in a note of this name, when tokens were used.
_USES_NOTE = "token_uses"
_NOTE_USES_S = 60.0
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends a request. Without `user`, it is the owner of the instance, who may do
    everything. `token`: what it was signed in with, if that is a user's. `sender`: the
    administrator who acts for this user, if it does not send the request itself.
    `project`: of which it is a service account, if it is one.
    """

    user: str | None
    role: Role
    token: Token | None = None
    sender: "Identity | None" = None
    project: str | None = None


OWNER = Identity(None, Role.ADMINISTRATOR)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the ledger holds: users by name, tokens by their digests, and when they were
    used.
    """

    users: dict[str, User]
    tokens: dict[str, Token]
    uses: Values


class Users:
    """Users and tokens, as an extension of the controller."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._users: dict[str, User] = {}
        # By their digests; and these by what proofs call them.
        self._tokens: dict[str, Token] = {}
        self._digests: dict[str, str] = {}
        self._used_at: dict[str, float] = {}
        self._noted_uses: Values = {}
        self._uses_noted_at = 0.0
        self._read_at = float("-inf")
        # Reads of the ledger are numbered; this one, or a change since, is the newest
        # of which we know.
        self._reads = 0
        self._newest = 0

    # --- the extension ---

    def start(self) -> None:
        """Find users and tokens in the ledger."""
        self.reload()

    def before_deciding(self) -> None:
        """Nothing: decisions do not depend on users."""

    def reload(self) -> None:
        """Find them in the ledger again."""
        self._outdate_reads()
        self._take(self._read())

    async def read_again(self) -> None:
        """`reload`, in a thread. What has changed here meanwhile stays: a token that
        was just revoked must not come back.
        """
        self._reads += 1
        number = self._reads
        found = await asyncio.to_thread(self._read)
        if number > self._newest:
            self._newest = number
            self._take(found)

    def _outdate_reads(self) -> None:
        """What is being read now is older than what is about to be known."""
        self._reads += 1
        self._newest = self._reads

    def _read(self) -> "_Stored":
        queries = self._core.queries
        # In this order: each token has its user then.
        tokens = queries.tokens()
        users = [User.model_validate(row) for row in queries.users()]
        return _Stored(
            {user.name: user for user in users},
            {row["sha256"]: Token.model_validate(row) for row in tokens},
            queries.note(_USES_NOTE) or {},
        )

    def _take(self, stored: "_Stored") -> None:
        self._users = stored.users
        self._keep(stored.tokens)
        self._used_at = {**stored.uses, **self._used_at}
        self._read_at = time.monotonic()

    @property
    def idle(self) -> bool:
        """True: nothing is left to do."""
        return True

    async def close(self) -> None:
        """Write when tokens were used."""
        self._note_uses()

    def _keep(self, tokens: dict[str, Token]) -> None:
        self._tokens = tokens
        self._digests = {key_id(digest): digest for digest in tokens}

    # --- who asks ---

    def identify(self, token: str, *, session: bool = False) -> Identity | None:
        """Who has this token; None if it is no user's. With `session`, it came as a
        browser's cookie: only sessions do, and they come no other way.
        UnauthorizedError if it has expired; ForbiddenError if its user is disabled.
        """
        # What one could learn from the time of a look-up is of digests, from which no
        # token can be told.
        found = self._tokens.get(digest_of(token))
        if found is None or (found.kind is TokenKind.SESSION) != session:
            return None
        now = self._core.clock()
        if found.expires_at is not None and now >= found.expires_at:
            if found.kind is not TokenKind.TOKEN:
                raise UnauthorizedError(
                    f"The sign-in of {found.user} has expired.", "Sign in again."
                )
            raise UnauthorizedError(
                f"The token {found.name!r} of {found.user} has expired.",
                "Ask an administrator for another: `gpuyard token new --user"
                f" {found.user}`.",
            )
        user = self._users[found.user]
        refuse_disabled(user)
        self._used_at[found.id] = now
        role = self._role_of(found)
        return Identity(user.name, role, found, project=user.project)

    def _role_of(self, token: Token) -> Role:
        """What a token is worth now."""
        role = self._users[token.user].role
        return token.role if token.role and role.includes(token.role) else role

    async def identify_afresh(
        self, token: str, *, session: bool = False
    ) -> Identity | None:
        """`identify`, for a server that does not lead: it looks into the ledger for
        what another server has changed.
        """
        is_old = time.monotonic() - self._read_at > _READ_AGAIN_S
        if is_old or digest_of(token) not in self._tokens:
            await self.read_again()
        return self.identify(token, session=session)

    def member(self, name: str) -> Identity:
        """A user whom the kernel has named. Without an entry of its own, it may do what
        every member of the group may. ForbiddenError if it is disabled.
        """
        user = self._users.get(name)
        if user is None:
            return Identity(name, Role.MAINTAINER)
        refuse_disabled(user)
        return Identity(name, user.role, project=user.project)

    def check_submits(self, name: str) -> None:
        """ForbiddenError if this user may not submit jobs, or no longer."""
        role = self.member(name).role
        if not role.includes(Role.MEMBER):
            raise ForbiddenError(
                f"The user {name} is a {role} now, and submits no jobs.",
                "Ask an administrator.",
            )

    def knows(self, name: str) -> bool:
        """Whether a user of this name was added."""
        return name in self._users

    def refuse_unknown(self, name: str) -> None:
        """NotFoundError for a name that nobody has: it would be a slip of the finger.
        On a shared workstation, accounts of the machine are users without being added.
        """
        if self.knows(name):
            return
        if self._core.settings.shared.socket is not None:
            try:
                pwd.getpwnam(name)
                return
            except KeyError:
                pass
        raise unknown_user(name)

    def digest_for(self, key: str) -> str | None:
        """The digest of the token that proofs call `key`."""
        return self._digests.get(key)

    def named(self, name: str) -> User | None:
        """The user of this name, if there is one."""
        return self._users.get(name)

    def of_subject(self, issuer: str, subject: str) -> User | None:
        """The user who is this subject to this issuer, if there is one."""
        wanted = (issuer, subject)
        for user in self._users.values():
            if (user.issuer, user.subject) == wanted:
                return user
        return None

    def now(self) -> float:
        """The time, in UTC seconds."""
        return self._core.clock()

    # --- what people ask for ---

    def listing(self) -> list[User]:
        """Every user, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def tokens_of(self, user: str | None) -> list[Token]:
        """The tokens of a user, or all; the oldest first."""
        chosen = [one for one in self._tokens.values() if user in (None, one.user)]
        oldest_first = sorted(chosen, key=lambda one: one.id)
        return [
            token.model_copy(update={"used_at": self._used_at.get(token.id)})
            for token in oldest_first
        ]

    async def add(self, given: NewUser, **linked: Any) -> User:
        """Add a user; RefusedError if there is one of this name. `linked`: who it is to
        a provider.
        """
        if given.name in self._users:
            raise RefusedError(
                f"There is a user {given.name} already.",
                f"Change it with `gpuyard user update {given.name}`.",
            )
        now = self._core.clock()
        user = User(**given.model_dump(), created_at=now, **linked)
        info = {"user": user.name, "role": user.role.value}
        if user.project is not None:
            info["project"] = user.project
        return await self._write_user(user, EventKind.USER_ADDED, info)

    async def update(self, name: str, changes: UserChanges) -> User:
        """Change a user. It counts from the next request on. NotFoundError."""
        values = changes.model_dump(exclude_none=True)
        before = self._find(name)
        refuse_of_service_account(before, changes)
        info = {"user": name, **values}
        if changes.awaits_sign_in is not None:
            values |= {"issuer": None, "subject": None}
        if changes.role is not None or changes.awaits_sign_in is not None:
            values["role_from_provider"] = False
        user = before.model_copy(update=values)
        changed = await self._write_user(user, EventKind.USER_CHANGED, info)
        if changes.awaits_sign_in is not None:
            await self.sign_out_everywhere(name)
        return changed

    async def sign_out_everywhere(self, name: str) -> None:
        """End the browsers and commands with which a user has signed in."""
        for token in self.tokens_of(name):
            if token.kind is not TokenKind.TOKEN:
                await self.revoke_token(token)

    async def change(self, name: str, user: User) -> None:
        """Write what a provider says of a user."""
        info = {"user": name, "role": user.role.value}
        await self._write_user(user, EventKind.USER_CHANGED, info)

    async def _write_user(
        self, user: User, kind: EventKind, info: dict[str, Any]
    ) -> User:
        values = user.model_dump(mode="json", exclude={"name"})
        change = Change(Table.USERS, user.name, values)
        self._outdate_reads()
        self._core.emit([Event(kind, self._core.clock(), (change,), None, info)])
        self._users[user.name] = user
        await self._core.committed()
        return user

    async def issue(self, given: NewToken, by: Identity) -> IssuedToken:
        """A new token. It is worth no more than the one that `by` has shown, and lives
        no longer. ForbiddenError, InvalidInputError, NotFoundError.
        """
        user = self._find(self._user_of(given, by))
        issued = [t for t in self.tokens_of(user.name) if t.kind is TokenKind.TOKEN]
        if len(issued) >= MOST_TOKENS:
            raise RefusedError(
                f"{user.name} has {MOST_TOKENS} tokens, and nobody has more.",
                "Revoke some: `gpuyard token list`, `gpuyard token revoke TOKEN`.",
            )
        now = self._core.clock()
        expires_at = None if given.expires_in_s is None else now + given.expires_in_s
        role = given.role
        if by.token is not None:
            expires_at = _earlier(expires_at, by.token.expires_at)
            role = role or by.token.role
        if role is not None:
            refuse_role(role, user, by.role)
        token = Token(
            id=new_id("token"),
            user=user.name,
            name=given.name,
            role=role,
            created_at=now,
            expires_at=expires_at,
        )
        return await self._issue(token)

    async def issue_as(
        self, user: str, name: str, kind: TokenKind, expires_at: float
    ) -> IssuedToken:
        """A token for a user who has signed in at a provider. ForbiddenError if it is
        disabled.
        """
        refuse_disabled(self._find(user))
        token = Token(
            id=new_id("token"),
            user=user,
            name=name,
            kind=kind,
            created_at=self.now(),
            expires_at=expires_at,
        )
        return await self._issue(token)

    async def _issue(self, token: Token) -> IssuedToken:
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        self._emit(self._issued(token, text))
        self._keep({**self._tokens, digest_of(text): token})
        await self._core.committed()
        return IssuedToken(**token.model_dump(), token=text)

    async def rotate(self, reference: str, by: Identity) -> IssuedToken:
        """Revoke a token, and issue one like it in the same commit: its user, name,
        role and end are those of the old one. NotFoundError as `revoke`; RefusedError
        and ForbiddenError for one that must not be replaced.
        """
        old = self._find_token(reference, by)
        refuse_rotation(old, by.token, self.now())
        changes = {"id": new_id("token"), "created_at": self.now(), "used_at": None}
        new = old.model_copy(update=changes)
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        self._emit(self._revoked(old), self._issued(new, text))
        self._keep({**self._without(old), digest_of(text): new})
        await self._core.committed()
        return IssuedToken(**new.model_dump(), token=text)

    def _user_of(self, given: NewToken, by: Identity) -> str:
        user = given.user or by.user
        if user is None:
            raise InvalidInputError.of(
                "user",
                "is missing; the owner of the instance has its token in"
                " $GPUYARD_HOME/token",
                "say whose token it shall be: --user NAME",
            )
        if user != by.user and by.role is not Role.ADMINISTRATOR:
            raise ForbiddenError(
                f"{by.user} is a {by.role}, and issues tokens for itself only.",
                "Leave user out, or ask an administrator.",
            )
        return user

    async def revoke(self, reference: str, by: Identity) -> Token:
        """Revoke a token, given by its id or the end of that; what it was. It counts
        from the next request on. NotFoundError, also for the tokens of others and for
        those that are worth more than the one that `by` has shown.
        """
        token = self._find_token(reference, by)
        await self.revoke_token(token)
        return token

    async def revoke_token(self, token: Token) -> None:
        """Revoke a token. It counts from the next request on."""
        self._emit(self._revoked(token))
        self._keep(self._without(token))
        await self._core.committed()

    def _without(self, token: Token) -> dict[str, Token]:
        tokens = self._tokens.items()
        return {digest: one for digest, one in tokens if one.id != token.id}

    def _find_token(self, reference: str, by: Identity) -> Token:
        theirs = [
            token
            for token in self._tokens.values()
            if by.role is Role.ADMINISTRATOR
            or (token.user == by.user and by.role.includes(self._role_of(token)))
        ]
        found = [token for token in theirs if token.id.endswith(reference)]
        if not found or len(reference) < _SHORTEST_TAIL:
            raise NotFoundError(
                f"There is no token {reference!r}.", "`gpuyard token list` lists them."
            )
        if len(found) > 1:
            ids = ", ".join(token.id for token in found)
            raise InvalidInputError.of(
                "token", f"{reference!r} could be {ids}", "give more of the id"
            )
        return found[0]

    def _emit(self, *events: Event) -> None:
        self._outdate_reads()
        self._core.emit(list(events))

    def _issued(self, token: Token, text: str) -> Event:
        values = token.model_dump(mode="json", exclude={"id", "used_at"})
        values["sha256"] = digest_of(text)
        return self._event(EventKind.TOKEN_ISSUED, token, values)

    def _revoked(self, token: Token) -> Event:
        return self._event(EventKind.TOKEN_REVOKED, token, None)

    def _event(self, kind: EventKind, token: Token, values: Values | None) -> Event:
        change = Change(Table.TOKENS, token.id, values)
        info = {"token": token.id, "user": token.user, "name": token.name}
        return Event(kind, self.now(), (change,), None, info)

    # --- when tokens are used ---

    def upkeep(self) -> None:
        """Write now and then when tokens were used."""
        if time.monotonic() - self._uses_noted_at > _NOTE_USES_S:
            self._note_uses()

    def _note_uses(self) -> None:
        self._uses_noted_at = time.monotonic()
        known = {token.id for token in self._tokens.values()}
        uses = {name: at for name, at in self._used_at.items() if name in known}
        if uses != self._noted_uses:
            self._noted_uses = uses
            self._core.writer.set_note(_USES_NOTE, uses)

    # --- memory ---

    def _find(self, name: str) -> User:
        if name not in self._users:
            raise unknown_user(name)
        return self._users[name]


def _earlier(one: float | None, other: float | None) -> float | None:
    given = [moment for moment in (one, other) if moment is not None]
    return min(given, default=None)
