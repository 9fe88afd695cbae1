"""`/api/v1/events`: the journal as pages, or as a live stream of server-sent events."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query, Request
from fastapi.responses import StreamingResponse

from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import InvalidInputError, TooManyRequestsError, quoted
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import identity_of, present_identity
from gpuyard.server.shared_answers import SHARING_KEY, Sharing
from gpuyard.server.stream import Message, message_of
from gpuyard.server.watched_answers import questions_of

router = api_router(tag="events")
_MOST_WATCHED = 8
_LAST = 2**63 - 1  # the largest number the journal can give


@router.get("/events", response_model=None, responses=text("text/event-stream"))
async def events(
    request: Request,
    app_state: TheAppState,
    job: str | None = None,
    after: Annotated[int | None, Query(ge=0, le=_LAST)] = None,
    since: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Not before it; UTC seconds."),
    ] = None,
    newest: Annotated[
        bool, Query(description="The newest events, not the first after `after`.")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    watch: Annotated[
        list[str] | None,
        Query(
            max_length=_MOST_WATCHED,
            description="With the stream: a path such as `/api/v1/gpus`. Its answer"
            " comes at once if others watch it, and whenever it changes, as an event"
            " `answer`.",
        ),
    ] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> dict[str, Any] | StreamingResponse:
    """With `Accept: text/event-stream` a stream from `Last-Event-ID` (or `after`, or
    now) on; else a page, oldest first. `since` means `newest`, too.
    """
    if after is not None and (newest or since is not None):
        raise InvalidInputError.of(
            "after", "does not go with newest or since", "give one of them"
        )
    visibility = app_state.controller.access.visibility_of(identity_of(request.scope))
    lookup = app_state.controller.requests.lookup
    job_id = lookup.find(job, visibility) if job else None
    if "text/event-stream" in request.headers.get("Accept", ""):
        begin = _cursor(last_event_id) if last_event_id else after
        return _stream(request, app_state, job_id, begin, watch or ())
    if newest or since is not None:
        return await _newest_page(app_state, job_id, since, limit, visibility)
    return _page_after(app_state, job_id, after or 0, limit, visibility)


async def _newest_page(
    app_state: AppState,
    job_id: str | None,
    since: float | None,
    limit: int,
    visibility: Visibility,
) -> dict[str, Any]:
    read = app_state.queries.newest_events
    rows = await asyncio.to_thread(read, limit, job_id, since)
    found = app_state.event_visibility.seen(list(map(message_of, rows)), visibility)
    return {"items": [one.to_json() for one in found], "next": None}


def _page_after(
    app_state: AppState,
    job_id: str | None,
    after: int,
    limit: int,
    visibility: Visibility,
) -> dict[str, Any]:
    rows = app_state.queries.events_after(after, limit, job_id)
    found = app_state.event_visibility.seen(list(map(message_of, rows)), visibility)
    return {
        "items": [one.to_json() for one in found],
        "next": rows[-1]["seq"] if len(rows) == limit else None,
    }


def _stream(
    request: Request,
    app_state: AppState,
    job_id: str | None,
    after: int | None,
    watch: Sequence[str],
) -> StreamingResponse:
    """The events after number `after`, or from now on; and the answers of the paths
    that are watched.
    """
    access = app_state.controller.access
    sharing: Sharing = request.scope[SHARING_KEY]
    watched = questions_of(sharing, watch)
    has_room = partial(app_state.watched.has_room, watched, sharing)
    if not has_room():
        raise TooManyRequestsError(
            "You watch too many different things at a time.", "Close other pages."
        )

    def see(messages: Sequence[Message]) -> list[Message]:
        # Each time anew: a stream may last for days, and who sees what changes.
        visibility = access.visibility_of(present_identity(request.scope))
        return app_state.event_visibility.seen(messages, visibility)

    async def body() -> AsyncIterator[bytes]:
        # An id without an event: whoever comes back before the first event misses none.
        begin = app_state.queries.last_seq() if after is None else after
        yield f": gpuyard\n\nid: {begin}\n\n".encode()
        if not has_room():
            return  # others have begun at the same moment
        is_new = after is None
        listen = app_state.stream.listen
        with app_state.watched.watching(watched, sharing):
            async for batch in listen(
                begin, job_id, see, from_now=is_new, watched=watched
            ):
                if not sharing.answers.are_same(watched):
                    return  # who comes back watches what exists for them now
                told = b"".join(message.to_sse() for message in batch)
                yield told or b": still here\n\n"

    return StreamingResponse(
        body(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _cursor(last_event_id: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", last_event_id):
        raise InvalidInputError.of(
            "Last-Event-ID",
            f"is {quoted(last_event_id)}",
            "send the stream's last id, a number",
        )
    return int(last_event_id)
