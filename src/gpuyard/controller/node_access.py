"""What the agent of a machine that has joined may have: what its own attempts need, and
nothing else.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.controller.attempt_order import WorkerToken, no_token
from gpuyard.controller.core import Core
from gpuyard.controller.datasets import Datasets
from gpuyard.controller.gangs import is_share_on
from gpuyard.domain import wire
from gpuyard.domain.contents import ContentKind, Stores
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.gangs import attempt_and_rank
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.joining import Machine
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.nodes import REMOVED
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.code_store import CodeMissingError, CodeStore
from gpuyard.storage.dataset_store import DatasetMissingError

_MOST_REMEMBERED = 10_000
# The next item of a batch for this attempt, after how its last one went and why it
# cannot work at all; see `BatchRequests.take`.
Take = Callable[
    [str, str, dict[str, Any] | None, str | None], Awaitable[dict[str, Any] | None]
]


async def _no_batches(batch_id: str, *_: object) -> None:
    raise NotFoundError(f"There is no batch {batch_id!r}.", "This server runs none.")


class NodeAccess:
    """Decides for all machines. `scratch`: a folder for what is on its way."""

    def __init__(self, core: Core, stores: Stores, blobs: Blobs, scratch: Path) -> None:
        self.scratch = scratch
        self._core = core
        self._code = CodeStore(stores)
        self.blobs = blobs
        self.datasets: Datasets | None = None
        self.worker_token: WorkerToken = no_token
        self.take: Take = _no_batches
        # What was stored by which attempt, in this order.
        self._stored: dict[tuple[str, str], None] = {}

    def caller(self, machine: Machine) -> "JoinedCaller":
        """A machine that has joined, as one who calls."""
        return JoinedCaller(self, machine)

    def title(self, node_id: str) -> str:
        """The name of a node."""
        return self._core.view.node(node_id).title

    def is_removed(self, node_id: str) -> bool:
        """Whether the node is no longer part of the instance."""
        return self._core.view.node(node_id).state == REMOVED

    def attempt(self, node_id: str, attempt_id: str) -> LiveAttempt:
        """A live attempt with a share on the node; RefusedError if there is none."""
        whole_id, rank = attempt_and_rank(attempt_id)
        found = self._core.view.attempts.get(whole_id)
        if found is None or not is_share_on(found, rank, node_id):
            raise RefusedError(f"{attempt_id} is no attempt on this machine.")
        return found

    def check_fetch(self, node_id: str, request: wire.FetchContents) -> None:
        """RefusedError unless attempts on the node need these contents."""
        specs = self._specs_on(node_id)
        match request.kind:
            case ContentKind.ENVIRONMENT:
                needed = {spec.carried_environment for spec in specs}
                needed |= {spec.packages for spec in specs}
            case ContentKind.TREE:
                needed = {spec.submitted_code for spec in specs}
            case ContentKind.FILE:
                trees = {spec.submitted_code for spec in specs if spec.submitted_code}
                needed = {file for tree in trees for file in self._files(tree)}
            case ContentKind.DATASET | ContentKind.CHUNK:
                needed = self._dataset_parts(specs, request)
        if not needed.issuperset(request.digests):
            raise RefusedError(
                f"No attempt on {self.title(node_id)} needs this {request.kind}."
            )

    def _dataset_parts(
        self, specs: Sequence[JobSpec], request: wire.FetchContents
    ) -> set[str]:
        """Which parts of datasets of the project that it names these jobs read."""
        datasets = self.datasets
        if datasets is None:
            return set()
        wanted: list[DatasetMount] = []
        for spec in specs:
            with suppress(DatasetMissingError):  # then its attempt fails
                mounts = datasets.mounts(spec)
                wanted += [it for it in mounts if it.project == request.project]
        if request.kind is ContentKind.DATASET:
            return {mount.digest for mount in wanted}
        return {part for mount in wanted for part in datasets.parts_of(mount)}

    def _specs_on(self, node_id: str) -> list[JobSpec]:
        # Also those of offers: their machine was rented for one of them.
        attempts = self._core.view.attempts.values()
        jobs = {attempt.job_id for attempt in attempts if attempt.runs_on(node_id)}
        bodies = self._core.queries.specs(jobs)
        return [self._core.read_spec(body) for body in bodies.values()]

    def _files(self, tree: str) -> set[str]:
        try:
            entries = self._code.get(tree).entries
        except CodeMissingError:
            return set()
        return {entry.sha256 for entry in entries}

    def stored(self, request: wire.StoreBlob) -> None:
        """Remember that an attempt has stored a blob."""
        self._stored[request.attempt_id, request.sha256] = None
        if len(self._stored) > _MOST_REMEMBERED:
            del self._stored[next(iter(self._stored))]

    def may_claim(self, attempt_id: str, sha256: str) -> bool:
        """Whether a blob is a checkpoint of the attempt: it has stored it, or, before
        this server has started, somebody has whose it is not yet.
        """
        if (attempt_id, sha256) in self._stored:
            return True
        return not self._core.queries.blob_is_used(sha256)

    async def take_item(self, node_id: str, request: wire.TakeItem) -> wire.ItemGiven:
        """A worker on the node has done an item and wants the next one. It shows the
        token that it got with its order: other programs of the machine may call, too.
        """
        try:
            attempt = self.attempt(node_id, request.attempt_id)
            token = self.worker_token(attempt.id, attempt.token, request.batch_id)
            given = request.token.encode()
            if not token or not hmac.compare_digest(token.encode(), given):
                raise RefusedError("That is not the token of this worker.")
            done = msgspec.structs.asdict(request.done) if request.done else None
            item = await self.take(
                request.batch_id, attempt.id, done, request.fault or None
            )
        except (RefusedError, NotFoundError) as error:
            return wire.ItemGiven(refused=str(error))
        return wire.ItemGiven(json.dumps(item).encode() if item else b"")

    def blob_to_resume(self, node_id: str, attempt_id: str) -> str:
        """The SHA-256 of the checkpoint from which an attempt of the node resumes;
        RefusedError.
        """
        attempt = self.attempt(node_id, attempt_id)
        queries = self._core.queries
        rows = queries.attempts_of([attempt.job_id])[attempt.job_id]
        own = next((row for row in rows if row["id"] == attempt.id), None)
        checkpoint = queries.checkpoint(own["resumed_from"] or "") if own else None
        if checkpoint is None:
            raise RefusedError(f"{attempt_id} resumes from no checkpoint.")
        return str(checkpoint["sha256"])


class JoinedCaller:
    """One machine (`providers.callers.Caller`)."""

    def __init__(self, access: NodeAccess, machine: Machine) -> None:
        self._access = access
        self.machine = machine
        self._node_id = machine.node_id

    @property
    def name(self) -> str:
        """What people call it."""
        return self._access.title(self._node_id)

    @property
    def blobs(self) -> Blobs:
        """Where its checkpoints are stored."""
        return self._access.blobs

    @property
    def scratch(self) -> Path:
        """See Caller."""
        return self._access.scratch

    def is_removed(self) -> bool:
        """See Caller."""
        return self._access.is_removed(self._node_id)

    def check_fetch(self, request: wire.FetchContents) -> None:
        """See Caller."""
        self._access.check_fetch(self._node_id, request)

    def check_store(self, request: wire.StoreBlob) -> None:
        """See Caller."""
        self._access.attempt(self._node_id, request.attempt_id)

    def stored(self, request: wire.StoreBlob) -> None:
        """See Caller."""
        self._access.stored(request)

    async def take_item(self, request: wire.TakeItem) -> wire.ItemGiven:
        """See Caller."""
        return await self._access.take_item(self._node_id, request)

    def blob_to_resume(self, attempt_id: str) -> str:
        """See Caller."""
        return self._access.blob_to_resume(self._node_id, attempt_id)
