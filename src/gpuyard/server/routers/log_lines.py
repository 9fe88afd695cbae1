"""`/api/v1/jobs/{reference}/lines`: lines of a job's output that meet conditions."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request
from pydantic import BaseModel

from gpuyard.controller.logs import LinesPage
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.log_query import MOST_LINES, LogQuery
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of

router = api_router("/jobs", tag="jobs")
# ATTEMPT:BYTE:SECTION.
_CURSOR = re.compile(
    r"([1-9]\d{0,8}):(\d{1,18}):([a-z]{0,20}(?::\d{1,9})?(?:/[a-z]+)?)"
)
# A client that waits asks again.
_LONGEST_WAIT_S = 10.0


class LogLines(BaseModel):
    """Lines, oldest first: `attempt`, `offset`, `time` (UTC seconds), `level`,
    `section` where that was asked for, and `text`.

    `next` is the cursor of what follows, None where nothing does; with `follow`, where
    nothing ever will. `previous` goes to `before`: lines before it were not looked at.
    """

    items: list[dict[str, Any]]
    next: str | None = None
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class LinesWanted:
    """Which lines; all conditions must hold."""

    attempt: Annotated[
        int | None, Query(ge=1, le=10**9, description="Default: the last.")
    ] = None
    search: Annotated[str, Query(description="Text that the line contains.")] = ""
    regex: Annotated[str, Query(description="RE2 finds it in the line.")] = ""
    ignore_case: bool = False
    level: Annotated[str, Query(description="At least `debug` … `critical`.")] = ""
    section: Annotated[
        str, Query(description="`setup`, `epoch:N`, `evaluation` or `traceback`.")
    ] = ""
    since: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Seen then or later; UTC seconds."),
    ] = None
    until: Annotated[float | None, Query(allow_inf_nan=False)] = None
    tail: Annotated[
        int | None, Query(ge=0, le=MOST_LINES, description="The last so many.")
    ] = None
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000
    sections: Annotated[
        bool, Query(description="Say in which section each stands.")
    ] = False
    cursor: Annotated[
        str | None, Query(description="The `next` of the page before.")
    ] = None
    before: Annotated[
        str | None, Query(description="The `previous` of a page; with tail.")
    ] = None
    follow: bool = False
    wait_s: Annotated[
        float,
        Query(ge=0, le=_LONGEST_WAIT_S, description="With follow: wait for a line."),
    ] = 0.0

    def query(self) -> tuple[int | None, LogQuery]:
        """The attempt and what to look for there. InvalidInputError."""
        number = self.attempt
        begin = 0
        section = ""
        end = None
        if self.before is not None:
            number, end, _ = _place("before", self.before)
        if self.cursor is not None:
            number, begin, section = _place("cursor", self.cursor)
        query = LogQuery(
            begin=begin,
            end=end,
            search=self.search,
            regex=self.regex,
            ignore_case=self.ignore_case,
            level=self.level,
            section=self.section,
            since=self.since,
            until=self.until,
            tail=self.tail,
            limit=self.limit,
            sections=self.sections,
            begin_section=section,
        )
        return number, query


@router.get("/{reference}/lines")
async def lines(
    reference: str,
    request: Request,
    app_state: TheAppState,
    wanted: Annotated[LinesWanted, Depends()],
) -> LogLines:
    """Lines of the output of the last attempt, or of `attempt`.

    A page has what was found in about half a second, which may be nothing: go on with
    `next`.
    """
    controller = app_state.controller
    visibility = visibility_of(request.scope, controller)
    job_id = controller.requests.find(reference, visibility)
    number, query = wanted.query()
    wait_s = wanted.wait_s if wanted.follow else 0.0
    found = await controller.logs.find(job_id, query, number=number, wait_s=wait_s)
    has_next_attempt = wanted.attempt is None and not controller.logs.is_over(job_id)
    items = [
        {"attempt": found.attempt, **msgspec.to_builtins(line)}
        for line in found.page.lines
    ]
    return LogLines(
        items=items,
        next=_next(found, follow=wanted.follow, has_next_attempt=has_next_attempt),
        previous=_cursor(found.attempt, found.page.previous),
    )


def _next(found: LinesPage, *, follow: bool, has_next_attempt: bool) -> str | None:
    """Where to go on, if anywhere."""
    page = found.page
    if found.is_over and page.is_end:
        if follow and has_next_attempt:
            return _cursor(found.attempt + 1, 0)
        return None
    if page.is_end and not follow:
        return None
    return _cursor(found.attempt, page.next, page.next_section)


def _cursor(attempt: int, offset: int | None, section: str = "") -> str | None:
    return None if offset is None else f"{attempt}:{offset}:{section}"


def _place(name: str, text: str) -> tuple[int, int, str]:
    match = _CURSOR.fullmatch(text)
    if match is None:
        fault = f"is {quoted(text)}"
        raise InvalidInputError.of(name, fault, "send what the page before had")
    return int(match[1]), int(match[2]), match[3]
