"""The instance: everything a request may need, made once. Routers get it from FastAPI
(`dependencies.py`).
"""

import asyncio
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gpuyard.config.dialling import Tls
from gpuyard.config.paths import Home
from gpuyard.config.proof import digest_of, key_id, proof
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.controller.users import OWNER, Identity
from gpuyard.domain.artifacts import LivingLink
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.jobspec import JobKind
from gpuyard.ledger.queries import Queries
from gpuyard.notify.end_notices import EndNotices
from gpuyard.notify.notifier import Notifier
from gpuyard.resource_manager.manager import ResourceManager
from gpuyard.server import worker_tokens
from gpuyard.server.artifact_links import ArtifactLinks, IssuedLink
from gpuyard.server.auth import replacing_token
from gpuyard.server.election import Election
from gpuyard.server.event_visibility import EventVisibility
from gpuyard.server.job_throughput import JobThroughput
from gpuyard.server.series_summaries import SeriesSummaries
from gpuyard.server.stream import EventStream
from gpuyard.server.whole_ledger import WholeLedger
from gpuyard.server.worker_tokens import WorkerClaim
from gpuyard.storage.blobs import Blobs

if TYPE_CHECKING:
    from starlette.types import Scope

    from gpuyard.server.agents_door import AgentsDoor
    from gpuyard.server.sign_in.service import SignIn
    from gpuyard.server.tools.door import ToolsDoor
    from gpuyard.server.watched_answers import WatchedAnswers


@dataclass(slots=True)
class AppState:
    """The server's parts. `stopping` is set when the server should leave; `used_at` is
    the last request's time.

    `notifier` is there where webhooks are configured; the server that leads has it
    and `end_notices` started. `agents_door` is there where machines may join.
    `tools_door` is there where browsers may open what jobs serve, on the server that
    leads. `election` is there where several servers may share the ledger. `sign_in` and
    `watched` are made with the application. `board_turns` has a lock for each user,
    under which their TensorBoards are looked up and started. `leads` becomes true when
    this one schedules, and stays so: a server that may lead no longer calls
    `start_over`, which does not return.
    """

    home: Home
    settings: Settings
    controller: Controller
    manager: ResourceManager
    blobs: Blobs
    stream: EventStream
    token: str
    url: str
    election: Election | None = None
    notifier: Notifier | None = None
    end_notices: EndNotices | None = None
    agents_door: "AgentsDoor | None" = None
    tools_door: "ToolsDoor | None" = None
    leads: bool = False
    start_over: Callable[[str], None] = lambda _: None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    used_at: float = field(default_factory=time.monotonic)
    whole_ledger: WholeLedger = field(init=False)
    event_visibility: EventVisibility = field(init=False)
    artifact_links: ArtifactLinks = field(init=False)
    sign_in: "SignIn" = field(init=False)
    watched: "WatchedAnswers" = field(init=False)
    series: SeriesSummaries = field(init=False)
    throughput: JobThroughput = field(init=False)
    board_turns: defaultdict[str | None, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    _rotating: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.whole_ledger = WholeLedger(self.controller.core.ledger, self.home.root)
        self.event_visibility = EventVisibility(self.queries)
        self.artifact_links = ArtifactLinks(self.queries.note, self.keep_note)
        self.series = SeriesSummaries(self.queries)
        self.throughput = JobThroughput(self.queries)
        self.controller.launching.worker_token = self._worker_token
        self.controller.node_access.worker_token = self._worker_token

    def admits(self, token: str) -> bool:
        """Is this the token of this server, or of one that shares its ledger?

        How long the answer takes says nothing about any of them.
        """
        given = digest_of(token.strip())
        # Each is compared, the first match ends nothing.
        matches = [secrets.compare_digest(given, known) for known in self._digests()]
        return any(matches)

    def _digests(self) -> list[str]:
        """Of the tokens of this server and of those that share its ledger."""
        others = self.election.lease_status.members if self.election else ()
        return [digest_of(self.token), *(member.token_sha256 for member in others)]

    async def rotate_token(self, shown: str) -> str:
        """Replace the owner's token, here, in the home, and in the list of servers.
        `shown`: the one of now. RefusedError where others rely on it, or if it is that
        of another server; LedgerError if the list cannot be changed.
        """
        if os.environ.get("GPUYARD_TOKEN"):
            raise RefusedError(
                "The owner's token is that of $GPUYARD_TOKEN, and no file has it.",
                "Start the server with another one.",
            )
        async with self._rotating:
            self._refuse_token_of_another(shown)
            if await self._has_workers():
                raise RefusedError(
                    "A batch runs, and its workers have tokens made from this one.",
                    "Try again after its end: `gpuyard batches`.",
                )
            with replacing_token(self.home.token) as token:
                if self.election:
                    await self.election.show_token(digest_of(token))
            self.token = token
            if self.election:
                self.election.on_seen()
        return token

    def _refuse_token_of_another(self, shown: str) -> None:
        digest = digest_of(shown)
        if digest == digest_of(self.token):
            return
        others = self.election.lease_status.members if self.election else ()
        for member in others:
            if member.token_sha256 == digest:
                raise RefusedError(
                    f"This token is that of the server at {member.url}.",
                    "Type `gpuyard token rotate` on its machine, with its home.",
                )
        raise RefusedError(
            "This token has just been replaced.", "Use the one that replaced it."
        )

    def owner_again(self, token: str) -> Identity | None:
        """The owner, if this token, which was the owner's, still is."""
        return OWNER if self.admits(token) else None

    async def _has_workers(self) -> bool:
        if not self.leads:  # only the leader has the view
            queries = self.queries
            live = await asyncio.to_thread(queries.live_of_kind, JobKind.WORKER)
            return bool(live)
        view = self.controller.core.view
        jobs = [view.jobs.get(one.job_id) for one in view.attempts.values()]
        return any(job and job.kind == JobKind.WORKER for job in jobs)

    def living_link(self, artifact_id: str, link: IssuedLink) -> LivingLink:
        """The resource of a link for people without a token."""
        server = self.settings.server.url or self.url
        url = self.artifact_links.url(server, artifact_id, link)
        return LivingLink(url=url, **msgspec.structs.asdict(link))

    def linked_artifact(self, link: str) -> str:
        """The id of the artifact that a link opens; ForbiddenError."""
        return self.artifact_links.read(link, self.controller.core.clock())

    async def keep_note(self, name: str, body: Mapping[str, Any]) -> None:
        """Write a note of the ledger; returns when it is committed."""
        core = self.controller.core
        core.writer.set_note(name, body)
        await core.committed(own_only=True)

    def proof(self, key: str, nonce: str) -> str | None:
        """The answer to a challenge with the token that `key` names; None when this
        server does not know that token.
        """
        for digest in self._digests():
            if key_id(digest) == key:
                return proof(digest, nonce, self.url)
        of_user = self.controller.users.digest_for(key)
        return proof(of_user, nonce, self.url) if of_user else None

    async def identify(self, token: str) -> Identity | None:
        """Who has this token; None if nobody has. Where servers come and go, it looks
        once more before a token is refused.

        UnauthorizedError if it has expired; ForbiddenError if its user is disabled.
        """
        if self.admits(token):
            return OWNER
        users = self.controller.users
        found = users.identify(token) if self.leads else None
        if self.election is None or found:
            return found
        if not self.leads and (found := await users.identify_afresh(token)):
            await self.controller.projects.read_afresh()
            return found
        await self.election.read_anew()
        return OWNER if self.admits(token) else None

    async def session_of(self, scope: "Scope") -> Identity | None:
        """Who has signed in with the browser that sends a request; None if nobody has.

        UnauthorizedError if that is too long ago; ForbiddenError if the user is
        disabled.
        """
        cookies = self.sign_in.cookies
        token = cookies.read(dict(scope["headers"]), cookies.session)
        if token is None:
            return None
        if shown := self.sign_in.token_sessions.open(token):
            return await self.identify(shown)
        if self.settings.sign_in.openid is None:
            return None
        users = self.controller.users
        if self.leads:
            return users.identify(token, session=True)
        found = await users.identify_afresh(token, session=True)
        await self.controller.projects.read_afresh()
        return found

    def session_again(self, cookie: str, admitted: Identity) -> Identity | None:
        """Who has signed in with a browser that was admitted, if it still would be."""
        users = self.controller.users
        token = self.sign_in.token_sessions.open(cookie)
        if token is None:
            return users.identify(cookie, session=True)
        is_owner = admitted.token is None
        return self.owner_again(token) if is_owner else users.identify(token)

    def _worker_token(self, attempt_id: str, fence: int, batch_id: str) -> str:
        claim = WorkerClaim(attempt_id, fence, batch_id)
        return worker_tokens.issue(digest_of(self.token), claim)

    async def worker_of(self, token: str) -> WorkerClaim | None:
        """What the token of a worker says; None if it is none of this instance."""
        if not worker_tokens.looks_like_worker_token(token):
            return None
        claim = worker_tokens.read(self._digests(), token)
        if claim is None and self.election:
            await self.election.read_anew()
            claim = worker_tokens.read(self._digests(), token)
        return claim

    def fence_of(self, attempt_id: str) -> int | None:
        """The fencing token of an attempt that lives; None if it does not."""
        attempt = self.controller.core.view.attempts.get(attempt_id)
        return attempt.token if attempt else None

    @property
    def tls(self) -> Tls:
        """How other servers prove themselves where their URLs are HTTPS."""
        server = self.settings.server
        ca_file = server.ca_file or os.environ.get("GPUYARD_CA_FILE")
        return Tls(str(ca_file) if ca_file else None, server.tls_name)

    @property
    def queries(self) -> Queries:
        """Reads of the ledger."""
        return self.controller.core.queries
