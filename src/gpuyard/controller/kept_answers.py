"""Answers of providers for which many people ask: each provider is asked once for all
who look meanwhile, seldom, and one that is slow delays nobody for long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import structlog

from gpuyard.domain.errors import GpuyardError

Answer = TypeVar("Answer")
KEEP_S = 10.0
"""For how long an answer is good enough for those who only look."""
_PATIENCE_S = 3.0
_TIMEOUT_S = 60.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeptAnswer(Generic[Answer]):
    """What a provider answered last; None if it never has. `problem` says for people
    why there is nothing newer; empty if that is new enough.
    """

    value: Answer | None = None
    problem: str = ""


class _AskedProvider(Generic[Answer]):
    """What is asked of one provider. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.answer: KeptAnswer[Answer] = KeptAnswer()
        self.begun_at = 0.0
        self.good_until = 0.0
        self.asking: asyncio.Task[None] | None = None


class KeptAnswers(Generic[Answer]):
    """Asks providers by their names.

    An answer is kept for `keep_s`, and so is a failure, for at least `rest_s`. A look
    waits until a question has been under way for `patience_s`, and a question ends
    after `timeout_s`.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[Answer]],
        keep_s: float = KEEP_S,
        rest_s: float = KEEP_S,
        patience_s: float = _PATIENCE_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._ask = ask
        self._keep_s = keep_s
        self._rest_s = max(rest_s, keep_s)
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._questions: dict[str, _AskedProvider[Answer]] = {}

    async def look(self, names: Iterable[str]) -> Mapping[str, KeptAnswer[Answer]]:
        """The newest answer of each of these providers. None of them fails: what went
        wrong stands in the answers.
        """
        questions = {
            name: self._questions.setdefault(name, _AskedProvider()) for name in names
        }
        now = time.monotonic()
        for name, question in questions.items():
            if question.asking is None and now >= question.good_until:
                question.begun_at = now
                asking = self._put(name, question)
                question.asking = asyncio.create_task(asking, name=f"ask-{name}")
        await asyncio.gather(*map(self._wait, questions.values()))
        return {name: self._answer(question) for name, question in questions.items()}

    async def _wait(self, question: _AskedProvider[Answer]) -> None:
        if question.asking is None:
            return
        left_s = question.begun_at + self._patience_s - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                # Others wait for it, too.
                await asyncio.shield(question.asking)

    def _answer(self, question: _AskedProvider[Answer]) -> KeptAnswer[Answer]:
        if question.asking is None:
            return question.answer
        waited_s = time.monotonic() - question.begun_at
        problem = f"it has not answered for {waited_s:.0f} s"
        return replace(question.answer, problem=problem)

    async def _put(self, name: str, question: _AskedProvider[Answer]) -> None:
        """Ask, and note what came of it."""
        problem = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                question.answer = KeptAnswer(await self._ask(name))
        except TimeoutError:
            problem = f"it did not answer within {self._timeout_s:g} s"
        except (GpuyardError, OSError) as error:
            problem = str(error) or type(error).__name__
        except Exception as error:
            log.exception("asking a provider failed", provider=name)
            problem = f"{type(error).__name__}: {error}"
        if problem:
            question.answer = replace(question.answer, problem=problem)
        keep_s = self._rest_s if problem else self._keep_s
        question.good_until = time.monotonic() + keep_s
        question.asking = None
