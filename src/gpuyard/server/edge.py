"""The server's edge: what every request passes before anything of it is parsed.

The name that it asks for, its token, the number of its client's requests and the length
of its body are looked at in this order, in the headers alone. Nothing of the body is
read before. What is refused is answered with a problem document, and its connection
ends without reading on.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.config import proof
from gpuyard.controller.users import Identity
from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    NotFoundError,
    RequestRefusedError,
    TooManyRequestsError,
    UnauthorizedError,
)
from gpuyard.domain.users import Role
from gpuyard.server import problems
from gpuyard.server.acting import act, acted_for
from gpuyard.server.app_state import AppState
from gpuyard.server.artifact_links import LINK_PATH
from gpuyard.server.audit import AuditLog
from gpuyard.server.auth import bearer_of
from gpuyard.server.bodies import Bodies, Body
from gpuyard.server.callers import CallerKey, Peer, is_own_user
from gpuyard.server.guesses import Guesses
from gpuyard.server.headers import secured
from gpuyard.server.host_names import HostNames
from gpuyard.server.permissions import (
    AGAIN_KEY,
    IDENTITY_KEY,
    SEES_KEY,
    check_role,
)
from gpuyard.server.rate_limit import RateLimit
from gpuyard.server.trusted_proxies import TrustedProxies
from gpuyard.server.web_page import is_of_page, nothing_here
from gpuyard.server.worker_tokens import CLAIM_KEY, WorkerClaim

if TYPE_CHECKING:
    from gpuyard.server.connections import Connection

# All that is answered without a token.
_CALLBACK = "/auth/callback"
_TOKEN = "/auth/token"
# Where one could guess what others know.
_GUESSED = (_CALLBACK, _TOKEN)
_SIGN_IN_PATHS = frozenset(
    {
        *_GUESSED,
        "/auth",
        "/auth/login",
        "/auth/logout",
        "/auth/device",
        "/auth/device/confirm",
        "/auth/device/token",
    }
)
PUBLIC_PATHS = _SIGN_IN_PATHS | {
    "/healthz",
    "/docs",
    "/openapi.json",
    "/api/v1/sign-in",
    LINK_PATH,
    proof.PATH,
}


def is_public(path: str) -> bool:
    """Whether a request of this path needs no token."""
    return path in PUBLIC_PATHS or is_of_page(path)


# What is done all day: it changes something, and still is no act for the audit log.
_EVERYDAY = re.compile(
    r"(GET|HEAD|OPTIONS) .*|WEBSOCKET /api/v1/agent|POST (/v1/.*"
    r"|/api/v1/(jobs(:wait)?|arrays|environments|packages|code|batches|estimate|estimate/batch"
    r"|recommendations(/measured)?"
    r"|batches/[^/]+/take)/?)"
)
_LOOKS = ("GET ", "HEAD ", "OPTIONS ")

# A WebSocket is open; and ends because who opened it is no longer admitted.
_OPENED = 101
_NOT_ADMITTED = 1008


class Edge:
    """ASGI middleware, outside all others."""

    def __init__(self, app: ASGIApp, app_state: AppState, audit: AuditLog) -> None:
        self._app = app
        self._app_state = app_state
        self._audit = audit
        settings = app_state.settings.server
        urls = [app_state.url, app_state.sign_in.url]
        if settings.url:
            urls.append(settings.url)
        self._hosts = HostNames(settings.hosts, urls)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._bodies = Bodies(settings)
        self._guesses = Guesses()
        self._most_requests = settings.max_requests
        self._rate_limit = RateLimit(settings.max_requests_per_s)
        self._requests: dict[CallerKey, int] = {}
        # Behind a proxy everybody looks like the proxy.
        self._trusts_own_user = settings.url is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        caller = self._proxies.caller_of(cast("dict[str, Any]", scope))
        try:
            await self._identify(scope, headers, caller)
            self._begin(caller)
        except GpuyardError as error:
            identity = scope.get(IDENTITY_KEY)
            self._audit.refused(caller, _what(scope), error.code, identity)
            await _refuse(error, scope, receive, send)
            return
        try:
            await self._pass(scope, headers, caller, receive, send)
        finally:
            self._end(caller)

    async def _identify(
        self, scope: Scope, headers: Mapping[bytes, bytes], caller: Peer
    ) -> None:
        """Find out who asks, and whether they may now; GpuyardError if not."""
        self._hosts.check(headers.get(b"host", b""))
        path = scope["path"]
        if path == _CALLBACK and self._is_known(caller):
            # Each wrong answer of a provider is asked of that provider.
            await self._slow_down(caller)
        elif path in (proof.PATH, _TOKEN):
            # Also where a token was shown: a viewer has one, and may look for the
            # owner's.
            await self._slow_down(caller)
        elif not is_public(path) and caller.is_member:
            if not self._app_state.leads:
                await self._app_state.controller.projects.read_afresh()
            self._sign_in(scope, caller)
        elif not is_public(path):
            await self._authenticate(scope, headers, caller)
        if identity := scope.get(IDENTITY_KEY):
            self._rate_limit.take(identity)

    async def _pass(
        self,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        caller: Peer,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] == "websocket":
            stream = _Stream(scope, receive, self._noting(scope, caller, send))
            await self._app(scope, stream.receive, stream.send)
            return
        try:
            body = self._bodies.of(scope, headers, receive)
        except RequestRefusedError as error:
            self._audit.refused(caller, _what(scope), error.code)
            await _refuse(error, scope, receive, send)
            return
        answer = _Answer(scope, body, receive, send)
        try:
            await self._app(scope, body or receive, answer)
        finally:
            if body:
                body.close()
                if body.fault:
                    self._audit.refused(caller, _what(scope), body.fault.code)
            if answer.status == ForbiddenError.status:
                code = ForbiddenError.code
                self._audit.refused(caller, _what(scope), code, scope.get(IDENTITY_KEY))
            self._note(scope, caller, answer.status)

    def _noting(self, scope: Scope, caller: Peer, send: Send) -> Send:
        """A WebSocket's `send`: it is noted when it begins, for it may last for days,
        or when it is refused.
        """

        async def noting(message: Message) -> None:
            if message["type"] == "websocket.accept":
                self._note(scope, caller, _OPENED)
            elif message["type"] == "websocket.http.response.start":
                self._note(scope, caller, message["status"])
                headers = secured(message.get("headers", ()))
                message = {**message, "headers": headers}
            await send(message)

        return noting

    async def _authenticate(
        self, scope: Scope, headers: Mapping[bytes, bytes], caller: Peer
    ) -> None:
        """UnauthorizedError without a token, TooManyRequestsError after many wrong
        ones; ForbiddenError for what is not theirs who have it: workers and users.
        """
        token = bearer_of(headers)
        if token is None:
            await self._admit_browser(scope, headers, caller)
            return
        if claim := await self._app_state.worker_of(token):
            self._admit_worker(claim, scope, caller)
            return
        connection = _connection_of(scope)
        # A proxy uses one connection for many clients.
        is_proven = connection and connection.proven and not caller.is_forwarded
        if not is_proven:
            await self._slow_down(caller)
        identity = await self._app_state.identify(token)
        if identity is None:
            self._guesses.wrong(caller.key)
            raise _unauthorized()
        if connection and not caller.is_forwarded:
            connection.prove()
        again = self._app_state.owner_again
        if identity.token:
            again = self._app_state.controller.users.identify
        scope[AGAIN_KEY] = partial(again, token)
        self._admit(identity, scope, caller, "token")

    async def _admit_browser(
        self, scope: Scope, headers: Mapping[bytes, bytes], caller: Peer
    ) -> None:
        """Admit who has signed in with a browser, from our own pages.
        UnauthorizedError, ForbiddenError.

        Its connection stays a new one: those that guess are slowed down.
        """
        cookies = self._app_state.sign_in.cookies
        token = cookies.read(headers, cookies.session)
        if token is None:
            raise _unauthorized()
        await self._slow_down(caller)
        identity = await self._app_state.session_of(scope)
        if identity is None:
            self._guesses.wrong(caller.key)
            raise _unauthorized()
        cookies.check_own_page(scope.get("method", "WEBSOCKET"), headers)
        again = self._app_state.session_again
        scope[AGAIN_KEY] = partial(again, token, identity)
        self._admit(identity, scope, caller, "session")

    def _admit_worker(self, claim: WorkerClaim, scope: Scope, caller: Peer) -> None:
        """Admit a worker to its own call. ForbiddenError.

        Its connection stays a new one: on those that are proven, wrong tokens are not
        slowed down.
        """
        claim.check_call(_what(scope))
        if acted_for(scope):
            raise ForbiddenError("This token is a worker's, which acts for nobody.")
        if self._app_state.leads:  # else the leader says
            claim.check_life(self._app_state.fence_of(claim.attempt_id))
        scope[CLAIM_KEY] = claim
        self._audit.admitted(caller, "worker")

    def _sign_in(self, scope: Scope, caller: Peer) -> None:
        """Admit a member of the group, whom the kernel names: no token is needed.

        ForbiddenError for what is not the member's.
        """
        if is_own_user(caller):
            identity = Identity(caller.user, Role.ADMINISTRATOR)
        else:
            again = partial(self._app_state.controller.users.member, caller.user or "")
            identity = again()
            scope[AGAIN_KEY] = again
        if connection := _connection_of(scope):
            connection.prove()
        self._admit(identity, scope, caller, "socket")

    def _admit(self, identity: Identity, scope: Scope, caller: Peer, by: str) -> None:
        """ForbiddenError if this is not for who asks."""
        scope[IDENTITY_KEY] = identity
        if name := acted_for(scope):
            access = self._app_state.controller.access
            act(scope, access, identity, name, _what(scope))
        check_role(scope[IDENTITY_KEY], _what(scope))
        self._audit.admitted(caller, by, scope[IDENTITY_KEY])

    async def _slow_down(self, caller: Peer) -> None:
        """Wait if the caller may be guessing tokens; TooManyRequestsError when it tries
        many at a time.
        """
        if not self._guesses.suspects(caller.key):
            return
        if not (self._trusts_own_user and is_own_user(caller)):
            await self._guesses.wait(caller.key)

    def _is_known(self, caller: Peer) -> bool:
        """Whether it is told apart from the other clients of a proxy."""
        return self._trusts_own_user or caller.is_forwarded

    def _begin(self, caller: Peer) -> None:
        count = self._requests.get(caller.key, 0)
        if count >= self._most_requests:
            raise TooManyRequestsError(
                f"This client has {count} requests under way.", "Send fewer at a time."
            )
        self._requests[caller.key] = count + 1

    def _end(self, caller: Peer) -> None:
        count = self._requests.pop(caller.key)
        if count > 1:
            self._requests[caller.key] = count - 1

    def _note(self, scope: Scope, caller: Peer, status: int | None) -> None:
        """Note what is an act, and what was a guess."""
        what = _what(scope)
        identity: Identity | None = scope.get(IDENTITY_KEY)
        outcome = str(status or "no answer")
        if scope["path"] == proof.PATH and status == NotFoundError.status:
            # Whoever learns that the server knows a key knows its token, too.
            self._guesses.wrong(caller.key)
            self._audit.refused(caller, what, NotFoundError.code)
        elif scope["path"] in _GUESSED and status == UnauthorizedError.status:
            self._guesses.wrong(caller.key)
            self._audit.refused(caller, what, UnauthorizedError.code)
        elif scope["path"] in _SIGN_IN_PATHS:
            if identity:  # who has just signed in or out
                self._audit.act(caller, what, outcome, identity)
        elif not is_public(scope["path"]) and _is_act(what, identity):
            self._audit.act(caller, what, outcome, identity)


def is_still_admitted(scope: Scope) -> bool:
    """Whether who was admitted would be admitted now: a stream may last for days, and
    meanwhile a token ends, or a user gets another role.
    """
    identify_again: Callable[[], Identity | None] | None = scope.get(AGAIN_KEY)
    if identify_again is None:
        return True
    try:
        identity = identify_again()
        if identity is not None:
            check_role(identity, _what(scope))
    except GpuyardError:
        return False
    sees: Callable[[Identity], bool] | None = scope.get(SEES_KEY)
    return identity is not None and (sees is None or sees(identity))


class _Stream:
    """`receive` and `send` of a WebSocket, which ends when who opened it is no longer
    admitted.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._ended = False

    async def receive(self) -> Message:
        """The next message of the client."""
        message = await self._receive()
        if not is_still_admitted(self._scope):
            await self._end()
            return {"type": "websocket.disconnect", "code": _NOT_ADMITTED}
        return message

    async def send(self, message: Message) -> None:
        """Send on."""
        if not is_still_admitted(self._scope):
            await self._end()
        if not self._ended:
            await self._send(message)

    async def _end(self) -> None:
        if not self._ended:
            self._ended = True
            await self._send({"type": "websocket.close", "code": _NOT_ADMITTED})


class _Answer:
    """The server's `send`: adds the headers, and says why a body was not read to its
    end, whatever the application makes of that.
    """

    def __init__(
        self, scope: Scope, body: Body | None, receive: Receive, send: Send
    ) -> None:
        self.status: int | None = None
        self._scope = scope
        self._body = body
        self._receive = receive
        self._send = send
        self._replaced = False
        self._has_begun = False

    async def __call__(self, message: Message) -> None:
        """Send on."""
        if message["type"] != "http.response.start":
            # Not of the first piece: who revokes the token that they show, or gives up
            # their role, is told that it is done.
            if self._has_begun and not is_still_admitted(self._scope):
                self._replaced = True
                if connection := _connection_of(self._scope):
                    connection.transport.abort()
            self._has_begun = True
            if not self._replaced:
                await self._send(message)
            return
        if self._body and self._body.fault:
            self._replaced = True
            self.status = self._body.fault.status
            await _refuse(self._body.fault, self._scope, self._receive, self._send)
            return
        self.status = message["status"]
        headers = secured(message.get("headers", ()))
        if self._body and not self._body.ended:
            headers.append((b"connection", b"close"))
        await self._send({**message, "headers": headers})


async def _refuse(
    error: GpuyardError, scope: Scope, receive: Receive, send: Send
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    told = problems.of_error(error)
    answer: Response = problems.in_form_of(scope["path"], told)
    if isinstance(error, UnauthorizedError):
        # The page signs people in before it says so.
        answer = nothing_here(Request(scope)) or answer
    answer.headers["Connection"] = "close"
    answer.raw_headers = secured(answer.raw_headers)
    await answer(scope, receive, send)


def _connection_of(scope: Scope) -> "Connection | None":
    return scope.get("gpuyard.connection")


def _is_act(what: str, identity: Identity | None) -> bool:
    """Whether it has a line in the audit log. Of what somebody does for another user,
    all that is more than to look has one.
    """
    if identity and identity.sender:
        return not what.startswith(_LOOKS)
    return not _EVERYDAY.fullmatch(what)


def _unauthorized() -> UnauthorizedError:
    return UnauthorizedError(
        "This request carries no valid token.",
        "Send `Authorization: Bearer …`; the token is in the file `token` in the"
        " server's $GPUYARD_HOME.",
    )


def _what(scope: Scope) -> str:
    return f"{scope.get('method', 'WEBSOCKET')} {scope['path']}"
