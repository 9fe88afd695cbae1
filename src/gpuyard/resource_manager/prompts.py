"""Prompts as jobs: a provider whose jobs wait in the request queues, beside the
requests of `/v1`, and run while a replica answers them.

A prompt takes no process and no core. What is known here ends with the server: the
ledger keeps the jobs, and queues again those that had no answer yet.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, ClassVar

from gpuyard.controller import owner_transitions, transitions
from gpuyard.controller.attempt_outcome import AttemptOutcome, Retry
from gpuyard.controller.core import Core
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import InsufficientResourcesError, JobNotFoundError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.offers import Offer
from gpuyard.domain.reasons import Reason
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState
from gpuyard.domain.units import format_duration
from gpuyard.gateway.replica_client import BUSY, Answer, ReplicaClient
from gpuyard.gateway.replica_errors import ReplicaFailedError
from gpuyard.gateway.request_queue import (
    ModelUnavailableError,
    QueuedRequestTerms,
    Replica,
)
from gpuyard.providers.base import QueueProvider
from gpuyard.resource_manager.models import Models
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.policy import backoff_s

_PATH = "chat/completions"
# A model that answers nonsense may answer well when it is asked again.
_TRIES = 3
_MOST_SHOWN = 300
# Ends that come within this time are recorded together.
_TOGETHER_S = 0.02
_CLOCK_WAS_SET_S = 1.0
_NOT_BEGUN = (AttemptState.INTENDED, AttemptState.SENT)


class NoAnswerError(Exception):
    """The model answered, but the answer holds no text. `is_final`: it would say the
    same again.
    """

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt that waits, is being answered, or was answered. Times are UTC seconds;
    `began` and `ran_s` are by the monotonic clock.

    `waits_again`: why it waits after a try that failed; empty otherwise.
    """

    order: AttemptOrder
    terms: QueuedRequestTerms
    created_at: float
    status: JobStatus = JobStatus.PENDING
    replica: Replica | None = None
    started_at: float | None = None
    ended_at: float | None = None
    began: float = 0.0
    ran_s: float | None = None
    reason: str = ""
    message: str = ""
    text: str = ""
    waits_again: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    pending_result: JobResult = field(init=False)

    def __post_init__(self) -> None:
        self.pending_result = JobResult(
            self.order.attempt_id, JobStatus.PENDING, created_at=self.created_at
        )

    @property
    def model(self) -> str:
        return self.order.command[0]

    @property
    def output(self) -> str | None:
        """The answer, or why there is none; None until it is over."""
        if not self.over.is_set():
            return None
        if self.status is JobStatus.COMPLETED:
            return f"{self.text}\n"
        return f"{self.message}\n" if self.message else ""


class Prompts(QueueProvider):
    """Answers prompts by the models of the settings."""

    PROVIDER_NAME: ClassVar[str] = "prompts"
    ends_with_server: ClassVar[bool] = True
    concurrency = 1000
    max_pending = 256
    """The other prompts wait in the scheduler's queue, where they cost less."""
    poll_s = 1.0
    offers_s = 1.0

    def __init__(
        self,
        core: Core,
        residents: Residents,
        models: Models,
        replicas: ReplicaClient,
    ) -> None:
        super().__init__({})
        self._core = core
        self._residents = residents
        self._models = models
        self._replicas = replicas
        # By attempt.
        self._prompts: dict[str, _Prompt] = {}
        self._changed = asyncio.Event()
        # From UTC to monotonic seconds.
        self._offset = 0.0

    def adopt(self) -> None:
        """Let the prompts of an older version, which are processes on nodes, wait here:
        those that wait at once, those that run if they must be asked again.
        """
        core = self._core
        prompts = [
            core.view.jobs[key] for key in core.queries.live_of_kind(JobKind.LLM)
        ]
        old = {job.id: job for job in prompts if not job.shape.model}
        for job_id, spec in core.queries.specs(list(old)).items():
            job = old[job_id]
            attempt = core.view.attempts.get(job.attempt_id or "")
            if attempt and attempt.state in _NOT_BEGUN:
                # No node of this version can start it.
                outcome = AttemptOutcome(core.clock(), stopped=Reason.REVOKED)
                retry = Retry(core.clock())
                core.emit([transitions.attempt_ended(job, attempt, outcome, retry)])
            shape = Shape.of_prompt(spec["model"])
            core.emit([owner_transitions.reshaped(job, shape, core.clock())])

    def reload(self) -> None:
        """Memory was read again from the ledger: drop the attempts that are over there,
        or never came to it.
        """
        self.adopt()
        for key in self._prompts.keys() - self._core.view.attempts.keys():
            task = self._prompts.pop(key).task
            if task:
                task.cancel()

    # --- what is offered ---

    async def offers(self) -> Sequence[Offer]:
        """One for each model; its problem is why the model cannot be loaded."""
        return [self._offer(model) for model in self._residents.specs]

    def _offer(self, model: str) -> Offer:
        spec = self._residents.specs[model]
        needs = Shape(cpus=0.0, gpus=spec.gpus, gpu_memory_gb=spec.memory_gb)
        price = self._core.list_price_of(needs)
        reason = self._models.why_not(model)
        return Offer(
            f"{self.PROVIDER_NAME}/{model}",
            self.PROVIDER_NAME,
            model=model,
            price_per_hour=price.per_hour / Decimal(spec.slots),
            currency=price.currency,
            price_source="the list price of the model's GPUs, divided by its slots",
            problem=reason or "",
        )

    async def health_check(self) -> dict[str, Any]:
        """See GpuProviderInterface."""
        return {"status": "healthy", "message": "answers prompts by resident models"}

    # --- submission ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Let the prompt wait for a replica."""
        key = order.attempt_id
        (model,) = order.command
        if model not in self._residents.specs:
            raise InsufficientResourcesError(
                f"{model} is not in the settings any more", self.PROVIDER_NAME
            )
        if key not in self._prompts:
            job = self._core.view.jobs[order.job_id]
            since = self._monotonic(job.created_at)
            terms = QueuedRequestTerms(
                job.priority, since, gpus=frozenset(order.gpu_uuids)
            )
            prompt = _Prompt(order, terms, self._core.clock())
            self._prompts[key] = prompt
            prompt.task = self._core.spawn(self._answer(prompt), "prompt")
        return key

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """See GpuProviderInterface."""
        return attempt_id if attempt_id in self._prompts else None

    def _monotonic(self, at: float) -> float:
        """A time in UTC seconds by the monotonic clock. The same time always gives the
        same result, unless the clock of the host was set.
        """
        offset = time.monotonic() - self._core.clock()
        if abs(offset - self._offset) > _CLOCK_WAS_SET_S:
            self._offset = offset
        return min(at + self._offset, time.monotonic())

    async def _answer(self, prompt: _Prompt) -> None:
        """Wait for a replica, and have it answer."""
        queues = self._residents.request_queues
        replica = await queues.acquire(prompt.model, prompt.terms)
        prompt.status = JobStatus.RUNNING
        prompt.replica = replica
        prompt.started_at = self._core.clock()
        prompt.began = time.monotonic()
        self._changed.set()
        try:
            async with asyncio.timeout(prompt.order.timeout_s) as time_limit:
                prompt.text = await self._ask(prompt, replica, time_limit)
        except TimeoutError:
            limit = format_duration(prompt.order.timeout_s or 0.0)
            message = f"{prompt.model} did not answer within {limit}"
            self._end(prompt, JobStatus.FAILED, Reason.TIMED_OUT, message)
        except (NoAnswerError, ModelUnavailableError) as error:
            self._end(prompt, JobStatus.FAILED, Reason.NO_ANSWER, str(error))
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            self._end(prompt, JobStatus.FAILED, Reason.NO_ANSWER, fault)
            raise
        else:
            self._end(prompt, JobStatus.COMPLETED)

    async def _another(self, prompt: _Prompt, time_limit: asyncio.Timeout) -> Replica:
        """Wait for another replica."""
        queues = self._residents.request_queues
        with _uncounted(prompt, time_limit):
            return await queues.acquire_again(prompt.model, prompt.terms)

    async def _ask(
        self, prompt: _Prompt, replica: Replica, time_limit: asyncio.Timeout
    ) -> str:
        """The answer, after three tries at most."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._try(prompt, replica, time_limit)
            except ModelUnavailableError as error:
                fault = NoAnswerError(str(error))
            except NoAnswerError as error:
                fault = error
            if fault.is_final or tries == _TRIES:
                raise fault
            with _uncounted(prompt, time_limit):
                await self._pause(prompt, tries, fault)
                replica = await self._another(prompt, time_limit)
            prompt.waits_again = ""
            self._changed.set()

    async def _try(
        self, prompt: _Prompt, replica: Replica, time_limit: asyncio.Timeout
    ) -> str:
        text = (prompt.order.stdin or b"").decode()
        body = {"messages": [{"role": "user", "content": text}]}
        has_limit = time_limit.when() is not None
        silent_s = self._core.settings.residency.silent_s or None
        try:
            async with asyncio.timeout(None if has_limit else silent_s) as silence:
                limit = time_limit if has_limit else silence
                answer = await self._replicas.ask(
                    replica, _PATH, body, lambda: self._another(prompt, limit)
                )
                prompt.replica = answer.replica
                return await _text_of(answer, prompt.model)
        except TimeoutError:
            silent = format_duration(silent_s or 0.0)
            raise NoAnswerError(f"{prompt.model} said nothing for {silent}") from None
        except ReplicaFailedError as error:
            fault = f"the answer of {prompt.model} broke off: {error}"
            raise NoAnswerError(fault) from None

    async def _pause(self, prompt: _Prompt, tries: int, fault: NoAnswerError) -> None:
        """Wait as long as any job does before its next attempt, and say why."""
        pause_s = backoff_s(self._core.policy, tries)
        shown = format_duration(pause_s)
        prompt.waits_again = f"{fault}; it is asked again after {shown}"
        self._changed.set()
        await asyncio.sleep(pause_s)

    def _end(
        self, prompt: _Prompt, status: JobStatus, reason: str = "", message: str = ""
    ) -> None:
        prompt.status = status
        prompt.reason = reason
        prompt.message = message
        prompt.ended_at = self._core.clock()
        if prompt.started_at is not None:
            prompt.ran_s = time.monotonic() - prompt.began
        prompt.over.set()
        self._changed.set()

    # --- polling ---

    async def news(self, timeout_s: float) -> None:
        """See GpuProviderInterface."""
        # Not `wait_for`, which may swallow that the server stops (until Python 3.12).
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        await asyncio.sleep(_TOGETHER_S)
        self._changed.clear()

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """See GpuProviderInterface."""
        known = {
            job_id: self._prompts[job_id]
            for job_id in job_ids
            if job_id in self._prompts
        }
        for prompt in known.values():
            self._heed_priority(prompt)
        return {job_id: self._result(prompt) for job_id, prompt in known.items()}

    def _heed_priority(self, prompt: _Prompt) -> None:
        """Let a prompt stand elsewhere in its queue if its owner gave it another
        priority.
        """
        job = self._core.view.jobs.get(prompt.order.job_id)
        if job is None or prompt.task is None or prompt.status is not JobStatus.PENDING:
            return
        if job.priority != prompt.terms.priority:
            prompt.task.cancel()
            prompt.terms = replace(prompt.terms, priority=job.priority)
            prompt.task = self._core.spawn(self._answer(prompt), "prompt")

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        return self._result(self._prompt(job_id))

    def _prompt(self, job_id: str) -> _Prompt:
        if job_id not in self._prompts:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return self._prompts[job_id]

    def _result(self, prompt: _Prompt) -> JobResult:
        if prompt.status is JobStatus.PENDING:
            # Thousands may wait, and each poll asks for all.
            return prompt.pending_result
        if prompt.waits_again and prompt.status is JobStatus.RUNNING:
            return replace(prompt.pending_result, error_message=prompt.waits_again)
        gpus = prompt.replica.gpus if prompt.replica else ()
        devices = self._core.view.devices
        nodes = [devices[gpu].node_id for gpu in gpus if gpu in devices]
        return JobResult(
            prompt.order.attempt_id,
            prompt.status,
            created_at=prompt.created_at,
            started_at=prompt.started_at,
            completed_at=prompt.ended_at,
            logs=prompt.output,
            exit_code=0 if prompt.status is JobStatus.COMPLETED else None,
            error_message=prompt.message or None,
            reason=prompt.reason,
            node=next((node for node in nodes if node), ""),
            gpus=gpus,
            ran_s=prompt.ran_s,
        )

    def why_waiting(self, job_id: str) -> str:
        """See GpuProviderInterface."""
        prompt = self._prompts.get(job_id)
        if prompt is None or prompt.status is not JobStatus.PENDING:
            return ""
        queue = self._residents.request_queues.by_model[prompt.model]
        before = queue.waiting.ahead_of(prompt.terms)
        place = f"{before} before it in line" if before else "it is the first in line"
        wanted = [each for each in queue.open if prompt.terms.gpus & set(each.gpus)]
        if wanted:
            devices = self._core.view.devices
            preferred = [devices[gpu] for gpu in prompt.terms.gpus if gpu in devices]
            gpus = sorted(device.index for device in preferred)
            named = ", ".join(map(str, gpus))
            return f"{place}; it waits for the server on GPU {named}"
        return f"{place}; {self._models.why_busy(prompt.model)}"

    # --- ends ---

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """Let the prompt leave its queue, or break off its answer."""
        prompt = self._prompt(job_id)
        if prompt.over.is_set():
            return False
        if prompt.task:
            prompt.task.cancel()
            await asyncio.wait([prompt.task])
        if not prompt.over.is_set():
            self._end(prompt, JobStatus.CANCELLED)
        return True

    async def forget_job(self, job_id: str) -> None:
        """See GpuProviderInterface."""
        self._prompts.pop(job_id, None)

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """The answer, once it is whole."""
        prompt = self._prompt(job_id)
        if follow:
            await prompt.over.wait()
        yield (prompt.output or "").encode()


@contextmanager
def _uncounted(prompt: _Prompt, time_limit: asyncio.Timeout) -> Generator[None]:
    """What is waited for meanwhile counts neither for the time limit nor for the
    cost.
    """
    ends_at = time_limit.when()
    time_limit.reschedule(None)
    began = time.monotonic()
    began_before = prompt.began
    try:
        yield
    finally:
        waited_s = time.monotonic() - began
        prompt.began = began_before + waited_s
        if ends_at is not None:
            time_limit.reschedule(ends_at + waited_s)


async def _text_of(answer: Answer, model: str) -> str:
    """The text of a chat completion; raises NoAnswerError if it is none."""
    content = b"".join([part async for part in answer.parts()])
    status = answer.response.status
    shown = content[:_MOST_SHOWN].decode(errors="replace")
    if not 200 <= status < 300:
        is_final = 400 <= status < 500 and status not in BUSY
        fault = f"{model} answered with status {status}: {shown}"
        raise NoAnswerError(fault, is_final=is_final)
    try:
        text = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise NoAnswerError(f"{model} answered with no chat completion: {shown}")
    return text
