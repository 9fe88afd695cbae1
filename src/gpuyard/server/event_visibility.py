"""Which events exist for who asks: those of jobs and other things of private projects
come only to their members.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuyard.controller.visibility import Visibility
from gpuyard.domain.events import EventKind
from gpuyard.ledger.queries import Queries
from gpuyard.server.concealing import conceal
from gpuyard.server.stream import Message

# What is kept of jobs, so that a stream does not ask for each event.
_MOST_KNOWN = 50_000
_GONE = object()
_OF_TOKENS = (EventKind.TOKEN_ISSUED, EventKind.TOKEN_REVOKED)


class EventVisibility:
    """Knows of which project events are."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._known: dict[str, str | None] = {}

    def seen(
        self, messages: Sequence[Message], visibility: Visibility
    ) -> list[Message]:
        """Those that exist for who asks, without the names of what does not."""
        if not visibility.of_all_users:
            messages = [one for one in messages if not _is_of_another(one, visibility)]
        if not visibility.hidden or not messages:
            return list(messages)
        self._learn({message.job_id for message in messages if message.job_id})
        return [
            _concealed(message, self._queries, visibility)
            for message in messages
            if self._is_seen(message, visibility)
        ]

    def _learn(self, job_ids: set[str]) -> None:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        new = job_ids - self._known.keys()
        if new:
            self._known |= self._queries.projects_of_jobs(new)

    def _is_seen(self, message: Message, visibility: Visibility) -> bool:
        """What is no longer in the ledger is hidden: nobody knows whose it was."""
        if message.job_id:
            project: Any = self._known.get(message.job_id, _GONE)
        else:
            project = self._project_of(message.data)
        return project is not _GONE and visibility.sees(project)

    def _project_of(self, data: Mapping[str, Any]) -> Any:
        """The project of what an event without a job is about; None if that is of no
        project.
        """
        queries = self._queries
        if "project" in data:
            return data["project"]
        if batch_id := data.get("batch_id"):
            if queries.batch(batch_id) is None:
                return _GONE
            found = queries.belongings_of([batch_id]).get(batch_id)
            return found.project if found else None
        if array_id := data.get("array_id"):
            row = queries.array(array_id)
            return row["project"] if row else _GONE
        # Of versions that did not say of which project it is.
        is_of_project = "schedule" in data or "budget" in data
        return _GONE if is_of_project else None


def _is_of_another(message: Message, visibility: Visibility) -> bool:
    """Whether it is about the tokens of another user, or about who is awaited at the
    provider: of that, somebody there could make use.
    """
    is_private = message.kind in _OF_TOKENS or "awaits_sign_in" in message.data
    return is_private and message.data.get("user") != visibility.user


def _concealed(message: Message, queries: Queries, visibility: Visibility) -> Message:
    data = conceal(queries, visibility, message.data)
    return message if data == message.data else replace(message, data=data, _sse=b"")
