"""What listeners of the event stream watch besides events: answers of the API.

Each question is asked once for all who see the same, after events and from time to
time, and its answer goes to all of them through the stream.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from starlette.types import Scope

from gpuyard.domain.errors import GpuyardError, InvalidInputError, quoted
from gpuyard.server.permissions import identity_of
from gpuyard.server.shared_answers import (
    SharedAnswers,
    Sharing,
    is_shared,
)
from gpuyard.server.stream import EventStream, Message, answer_of

# Of temperatures and the like no event tells.
_REST_S = 2.0
# So much may one user watch at a time. A page watches eight things at most, and many
# pages that watch the same count once.
_MOST_OF_ONE = 128
# Others, such as 401, are about who asks.
_FOR_ALL = (200, 404)
# What is asked, and by which requests.
Questions = Mapping[Hashable, Scope]
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Watch:
    """A question, and the requests of those who watch it."""

    asking: dict[int, Scope] = field(default_factory=dict[int, Scope])
    keeping: asyncio.Task[None] | None = None


def questions_of(sharing: Sharing, addresses: Sequence[str]) -> Questions:
    """What is asked at these addresses. InvalidInputError where nobody can watch."""
    scopes: list[Scope] = []
    for address in addresses:
        scope = sharing.asking(address)
        if not is_shared(scope):
            raise InvalidInputError.of(
                "watch",
                f"is {quoted(address)}, which nobody can watch",
                "give a path such as /api/v1/gpus or /api/v1/jobs?limit=12",
            )
        scopes.append(scope)
    return {sharing.answers.key_of(scope): scope for scope in scopes}


class WatchedAnswers:
    """Asks what is watched, for as long as somebody does."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._watches: dict[Hashable, _Watch] = {}
        # How often each user watches each question.
        self._of_user: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)

    def has_room(self, questions: Questions, sharing: Sharing) -> bool:
        """Whether who asks may watch these, too. The owner of the instance may watch
        what it likes.
        """
        user = _user_of(sharing.scope)
        watched = self._of_user.get(user or "", Counter[Hashable]())
        together = set(watched) | set(questions)
        return user is None or len(together) <= _MOST_OF_ONE

    @contextmanager
    def watching(self, questions: Questions, sharing: Sharing) -> Generator[None]:
        """Answers to these come through the stream within the block."""
        user = _user_of(sharing.scope) or ""
        self._of_user[user].update(iter(questions))
        try:
            for question, scope in questions.items():
                self._begin(question, scope, sharing.answers)
            yield
        finally:
            for question, scope in questions.items():
                self._end(question, scope)
            self._of_user[user] -= Counter(iter(questions))
            if not self._of_user[user]:
                del self._of_user[user]

    def _begin(self, question: Hashable, scope: Scope, answers: SharedAnswers) -> None:
        watch = self._watches.setdefault(question, _Watch())
        watch.asking[id(scope)] = scope
        if watch.keeping is None:
            keeping = self._keep(question, watch, answers)
            watch.keeping = asyncio.create_task(keeping, name="watched-answer")

    def _end(self, question: Hashable, scope: Scope) -> None:
        watch = self._watches[question]
        watch.asking.pop(id(scope), None)
        if not watch.asking:
            del self._watches[question]
            self._stream.forget_answer(question)
            if watch.keeping:
                watch.keeping.cancel()

    async def _keep(
        self, question: Hashable, watch: _Watch, answers: SharedAnswers
    ) -> None:
        before = b""
        while True:
            news = self._stream.news
            # Those who ask take turns: one of them may lose the right to.
            number, scope = next(iter(watch.asking.items()))
            watch.asking[number] = watch.asking.pop(number)
            answer = await _answer_of(question, scope, answers)
            if answer and answer.to_sse() != before:
                before = answer.to_sse()
                self._stream.publish_answer(question, answer)
            await asyncio.sleep(answers.pause_s)
            await self._until_news(news)

    async def _until_news(self, known: int) -> None:
        loop = asyncio.get_running_loop()
        rests_until = loop.time() + _REST_S
        while self._stream.news == known and loop.time() < rests_until:
            await self._stream.changed(rests_until - loop.time())


def _user_of(scope: Scope) -> str | None:
    """Whose request it is: of one for somebody else, who sends it."""
    identity = identity_of(scope)
    return (identity.sender or identity).user


def _address_of(scope: Scope) -> str:
    query = scope["query_string"].decode()
    return f"{scope['path']}?{query}" if query else scope["path"]


async def _answer_of(
    question: Hashable, scope: Scope, answers: SharedAnswers
) -> Message | None:
    """The present answer; None if there is none that all who watch may have."""
    try:
        if answers.key_of(scope) != question:
            return None
        start, *rest = await answers.ask(scope, is_patient=False)
        is_for_all = answers.key_of(scope) == question
    except GpuyardError:
        return None
    except Exception:  # the next time may go well
        log.exception("a watched question has no answer", path=scope["path"])
        return None
    if not is_for_all or start["status"] not in _FOR_ALL:
        return None
    body = b"".join(message.get("body", b"") for message in rest)
    return answer_of(_address_of(scope), start["status"], body)
