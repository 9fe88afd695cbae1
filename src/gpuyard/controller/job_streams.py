"""Streams to running jobs: to a command beside the program, to the standard input of
the program, or to a port of a node.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from gpuyard.controller.core import Core
from gpuyard.domain.errors import RefusedError, TooManyRequestsError
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.commands import CommandStream
from gpuyard.providers.configured import Providers
from gpuyard.providers.node_provider import NodeProvider
from gpuyard.providers.node_streams import NodeStream
from gpuyard.scheduler.attempts import LiveAttempt

# A browser opens some dozens at a time for one page.
MOST_STREAMS = 64


class JobStreams:
    """Opens streams to the jobs that run on nodes."""

    def __init__(self, core: Core, providers: Providers) -> None:
        self._core = core
        self._providers = providers
        self._open: Counter[str] = Counter()

    def node_of(self, job_id: str, port: int = 0, *, stdin: bool = False) -> str:
        """The name of the node to which such a stream of the job would lead now; see
        `open`. RefusedError when the job does not run, or takes no such stream there.
        """
        attempt, _ = self._running(job_id, port, stdin=stdin)
        if stdin:
            self._refuse_without_input(job_id)
        return self._node_name(attempt)

    @asynccontextmanager
    async def open(
        self, job_id: str, port: int = 0, *, stdin: bool = False
    ) -> AsyncGenerator[NodeStream]:
        """A stream to the job: to this port of its node, with `stdin` to the standard
        input of its program, or else to a command beside it. It is closed at the end.

        RefusedError and ProviderError say why there is none.
        """
        attempt, provider = self._running(job_id, port, stdin=stdin)
        if stdin:
            self._refuse_without_input(job_id)
        if self._open[job_id] >= MOST_STREAMS:
            raise TooManyRequestsError(
                f"{MOST_STREAMS} commands and connections to {job_id} are open.",
                "End some of them first.",
            )
        self._open[job_id] += 1
        try:
            # Requests for a model must not reach somebody else's program.
            is_model = self._core.view.jobs[job_id].kind == JobKind.MODEL
            stream = await _opened(
                provider, attempt, port, stdin=stdin, own_port=is_model
            )
            try:
                yield stream
            finally:
                stream.close()
        finally:
            self._open[job_id] -= 1
            if not self._open[job_id]:
                del self._open[job_id]

    def _running(
        self, job_id: str, port: int, *, stdin: bool = False
    ) -> tuple[LiveAttempt, GpuProviderInterface]:
        """The attempt that runs, and its provider, which can open such a stream.
        RefusedError.
        """
        job = self._core.view.jobs.get(job_id)
        if job is None:
            row = self._core.queries.job(job_id) or {}
            raise RefusedError(
                f"{job_id} is over ({row.get('state')}), so nothing of it runs.",
                f"`gpuyard show {job_id[-8:]}` says why it ended.",
            )
        attempt = self._core.view.attempts.get(job.attempt_id or "")
        if attempt is None or job.state in (JobState.QUEUED, JobState.ASSIGNED):
            remedy = f"`gpuyard why {job_id[-8:]}` says what it waits for."
            raise RefusedError(f"{job_id} is {job.state} and does not run yet.", remedy)
        provider = self._providers.get(attempt.provider)
        node_provider = self._providers.agents_of(attempt.provider)
        is_command = not port and not stdin
        commands = provider is not None and provider.runs_commands and is_command
        if node_provider is None and not commands:
            raise self._by_hand(job_id, attempt, port)
        provider = node_provider or provider
        assert provider is not None
        if job.state is JobState.UNKNOWN:
            raise RefusedError(
                f"Whether {job_id} still runs is unknown: {self._silent(attempt)} is"
                " silent."
            )
        if attempt.state is AttemptState.ENDING:
            remedy = f"`gpuyard show {job_id[-8:]}` says why; start it anew."
            raise RefusedError(f"{job_id} is being ended.", remedy)
        return attempt, provider

    def _silent(self, attempt: LiveAttempt) -> str:
        name = self._node_name(attempt)
        return f"its node {name}" if name else attempt.provider

    def _refuse_without_input(self, job_id: str) -> None:
        spec = self._core.queries.specs([job_id])[job_id]
        if not spec.get("interactive"):
            raise RefusedError(
                f"{job_id} takes no input: it was submitted without -i"
                " (`interactive`).",
                "For a dialogue, start a shell beside it: `gpuyard exec -t"
                f" {job_id[-8:]} -- bash`.",
            )

    def _by_hand(self, job_id: str, attempt: LiveAttempt, port: int) -> RefusedError:
        """What to type where the job runs, which gpuyard cannot do there."""
        provider = self._providers.get(attempt.provider)
        reference = attempt.provider_ref or ""
        remedy = ""
        if provider is not None and reference:
            remedy = (
                provider.forward_by_hand(reference, port)
                if port
                else provider.exec_by_hand(reference)
            )
        what = "forward ports of jobs" if port else "run commands beside jobs"
        return RefusedError(
            f"{job_id} runs on {attempt.provider}, where gpuyard cannot {what}.", remedy
        )

    def _node_name(self, attempt: LiveAttempt) -> str:
        node = self._core.view.nodes.get(attempt.node_id)
        return node.title if node else attempt.node_id


async def _opened(
    provider: GpuProviderInterface,
    attempt: LiveAttempt,
    port: int,
    *,
    stdin: bool,
    own_port: bool,
) -> NodeStream:
    """The stream, by the node's agent, or else by the provider."""
    if isinstance(provider, NodeProvider):
        return await provider.open_stream(
            attempt.node_id, attempt.id, port, stdin=stdin, own_port=own_port
        )
    reference = attempt.provider_ref or ""

    async def is_over() -> bool:
        return (await provider.get_job_status(reference)).status.is_over

    return await CommandStream.open(partial(provider.start_command, reference), is_over)
