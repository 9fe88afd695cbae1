"""Executors in this process: honest ones and cheaters, on channels that hold them to
the protocol as real ones do.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuyard.config.verification import ExecutorSettings
from gpuyard.verification.batch import BatchSetup, ClassTerms, VerificationBatch
from gpuyard.verification.channels import Channel, GoneError
from gpuyard.verification.check import Check, excuse
from gpuyard.verification.claims import Expected
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import steady_now
from gpuyard.verification.context import Context
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import (
    AnswersPiece,
    Claims,
    Conversation,
    Hash,
    Message,
    OrderDocument,
    Ready,
    SolverStage,
)
from gpuyard.verification.solver.messages import canonical, pieces
from gpuyard.verification.solver.probe import nonce_of
from tests.support.verification import answer_to


def executor(name: str, cls: Class, *, stream: bool = True) -> Executor:
    """One that streams, or gets its seed on standard input."""
    settings = ExecutorSettings.model_validate({"class": cls, "stream": stream})
    return Executor(name, cls, settings)


class Honest:
    """What it does is overridden by cheaters. `took_s` is how long it seems to take;
    `says_s` is what it says of that.
    """

    took_s = 0.0
    says_s = 0.0

    def __init__(self) -> None:
        self.orders: list[OrderDocument] = []
        self.salts: dict[str, str] = {}

    def nonce(self, order: OrderDocument, seed: int, said: Hash) -> str:
        """That of its claims, which it knows once its hash has come."""
        salt = self.salts.get(order["check"], "")
        return nonce_of(order["check"], seed, said.sha256, said.fingerprints, salt)

    async def first(self, order: OrderDocument) -> Message:
        self.orders.append(order)
        return Ready()

    def answers(self, prompts: Sequence[str], seed: int) -> Mapping[str, str]:
        return {prompt: answer_to(prompt, seed) for prompt in prompts}

    def claims(self) -> Claims | None:
        return None

    async def rest(self, order: OrderDocument, seed: int) -> AsyncIterator[Message]:
        """Everything after the seed."""
        data = self.file(order, seed)
        yield Hash(sha256=hashlib.sha256(data).hexdigest(), solve_s=self.says_s)
        if claims := self.claims():
            yield claims
        for piece in pieces("answers", data, 1 << 16):
            yield AnswersPiece.model_validate(piece)

    def file(self, order: OrderDocument, seed: int) -> bytes:
        return canonical(dict(self.answers(order["prompts"], seed)))


class InProcess:
    """A channel to one of them."""

    def __init__(
        self, behaviour: Honest, order: OrderDocument, *, seeded: bool
    ) -> None:
        self.job_id: str | None = None
        self.closed = False
        self.heard_at = steady_now()
        self._seeded = seeded
        self._behaviour = behaviour
        self._order = order
        self._said = Conversation(seeded=seeded)
        self._rest: AsyncIterator[Message] | None = None

    async def ready(self) -> Message | None:
        return None if self._seeded else await self._first()

    async def _first(self) -> Message:
        first = await self._behaviour.first(self._order)
        self.job_id = "job_1"
        return self._said.take(first)

    async def reveal(self, seed: int) -> float:
        if not self._seeded:
            self._said.release()
        self._rest = self._behaviour.rest(self._order, seed)
        return steady_now() - self._behaviour.took_s

    async def receive(self) -> Message:
        assert self._rest is not None
        if self._seeded and self._said.stage is SolverStage.STARTING:
            self.heard_at = steady_now() - self._behaviour.took_s
            return await self._first()
        self.heard_at = steady_now()
        try:
            return self._said.take(await anext(self._rest))
        except StopAsyncIteration:
            raise GoneError("it has left.") from None

    async def send_salt(self, salt: str) -> bool:
        if not self._seeded:
            self._behaviour.salts[self._order["check"]] = salt
        return not self._seeded

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


class Executors:
    """Opens `channels` to executors by name; who is not named is honest. `asked`: who
    was, in this order.
    """

    def __init__(self, **behaviours: Honest) -> None:
        self._behaviours = behaviours
        self._honest = Honest()
        self.channels: list[InProcess] = []
        self.asked: list[str] = []

    def open(self, executor: Executor, check_id: str, order: OrderDocument) -> Channel:
        behaviour = self._behaviours.get(executor.name, self._honest)
        self.asked.append(executor.name)
        seeded = executor.delivery == "stdin"
        self.channels.append(InProcess(behaviour, order, seeded=seeded))
        return self.channels[-1]


async def keep_nothing(checks: Sequence[Check]) -> None:
    """No evidence."""


async def tell_nobody(checks: Sequence[Check]) -> bool:
    """There is no instance."""
    return True


def make_batch(
    context: Context,
    opens: Executors,
    classes: Sequence[Class],
    folder: Path,
    expected: Mapping[Class, Expected] | None = None,
    keep: Callable[[Sequence[Check]], Awaitable[None]] = keep_nothing,
    tell: Callable[[Sequence[Check]], Awaitable[bool]] = tell_nobody,
    every_prompt: bool = False,
    places: Callable[[str], str] = str,
    **issuers: str,
) -> VerificationBatch:
    """A batch over executors in this process; answer files go into `folder`."""
    wanted: dict[Class, Any] = dict(expected or {})
    terms = {
        cls: ClassTerms(TRAITS[cls].solve_s, wanted.get(cls) or Expected(cls.value))
        for cls in classes
    }
    excuses = partial(excuse, context.records, issuers)
    return VerificationBatch(
        BatchSetup(
            context,
            opens,
            "test",
            terms,
            excuses,
            folder,
            keep,
            tell,
            every_prompt,
            places,
        )
    )
