"""The server, but that its ledger stores none of the benchmark's jobs: what taking in a
job costs without the disk.
"""

from collections.abc import Sequence

from gpuyard.domain.events import Event, EventKind
from gpuyard.ledger.writer import Writer
from gpuyard.server.__main__ import main

_add_events = Writer.add_events


def _add_other_events(
    self: Writer, events: Sequence[Event], *, can_wait: bool = False
) -> None:
    """Queue what is not a submission of `bench.spec_body`."""
    kept = [
        e
        for e in events
        if e.kind is not EventKind.JOB_SUBMITTED
        or not e.info["name"].startswith("train-")
    ]
    if kept:
        _add_events(self, kept, can_wait=can_wait)


if __name__ == "__main__":
    Writer.add_events = _add_other_events
    main()
