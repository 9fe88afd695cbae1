"""Messages between server and agent about the output of attempts."""

import msgspec

from gpuyard.domain.log_query import LogPage, LogQuery
from gpuyard.domain.wire_types import AttemptId, Whole


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class LogPart(_Message, frozen=True, tag="LogPart"):
    """Answer to ReadLog: bytes from `offset` on; `end` is true when there will be no
    more.
    """

    request: Whole
    offset: Whole
    data: bytes
    end: bool
    missing: bool = False


class LinesFound(_Message, frozen=True, tag="LinesFound"):
    """Answer to FindLines; `end` is true when there will be no more. `page` is None
    where there is no log. `problem`: why it cannot be read.
    """

    request: Whole
    page: LogPage | None = None
    end: bool = False
    problem: str = ""


class ReadLog(_Message, frozen=True, tag="ReadLog"):
    """Send up to `limit` bytes from `offset` on (negative: from `tail_lines` before the
    end); wait for them up to `wait_s`.
    """

    request: int
    attempt_id: AttemptId
    offset: int
    limit: int = 1 << 20
    tail_lines: int = 0
    wait_s: float = 0.0


class FindLines(_Message, frozen=True, tag="FindLines"):
    """Send a page of the lines of a query; while there are none, wait up to
    `wait_s`.
    """

    request: int
    attempt_id: AttemptId
    query: LogQuery
    wait_s: float = 0.0
