"""Follows a job in a notebook until it is over."""

import queue
import threading
import time
from typing import TYPE_CHECKING

from gpuyard.domain.errors import GpuyardError
from gpuyard.notebook.view import PlainView

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle

_LINES = 10_000  # read ahead of what is shown
_LOOK_S = 0.2
_DRAW_S = 1.0
# It rests so many times longer than it has drawn.
_REST = 5


class _Output:
    """The lines of a job, read in a thread of their own, so that curves are drawn also
    while it prints nothing.
    """

    def __init__(self, client: "Client", job_id: str) -> None:
        self._lines: queue.Queue[str | GpuyardError | None] = queue.Queue(_LINES)
        self._over = threading.Event()
        # A connection of its own: that of the notebook is used meanwhile.
        self._client = type(client)()
        threading.Thread(target=self._read, args=(job_id,), daemon=True).start()

    def next(self) -> list[str] | None:
        """The lines that have come, after at most a moment; None once there are no
        more. GpuyardError when they could not be read on.
        """
        lines: list[str] = []
        wait_s = _LOOK_S
        while len(lines) < _LINES:
            try:
                item = self._lines.get(timeout=wait_s)
            except queue.Empty:
                return lines
            if isinstance(item, GpuyardError):
                raise item
            if item is None:
                self._lines.put(None)
                return lines or None
            lines.append(item)
            wait_s = 0.001
        return lines

    def close(self) -> None:
        """Nobody wants more."""
        self._over.set()

    def _read(self, job_id: str) -> None:
        try:
            with self._client as client:
                for line in client.job(job_id).logs():
                    self._put(line)
                    if self._over.is_set():
                        return
        except GpuyardError as error:
            self._put(error)
        finally:
            self._put(None)

    def _put(self, item: "str | GpuyardError | None") -> None:
        while not self._over.is_set():
            try:
                self._lines.put(item, timeout=_LOOK_S)
                return
            except queue.Full:
                continue


def follow(client: "Client", job: "JobHandle", view: PlainView) -> None:
    """Show the job until it is over. KeyboardInterrupt leaves it alone."""
    output = _Output(client, job.id)
    next_at = 0.0
    try:
        while (lines := output.next()) is not None:
            for line in lines:
                view.line(line)
            begun = time.monotonic()
            if begun >= next_at:
                job.refresh()
                view.progress(job)
                ended = time.monotonic()
                next_at = ended + max(_DRAW_S, _REST * (ended - begun))
        job.wait()
        view.end(job)
    finally:
        output.close()
