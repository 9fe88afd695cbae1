"""`%load_ext gpuyard`: a cell as a job, and commands in a line."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from gpuyard.client.sync import Client
from gpuyard.domain.errors import GpuyardError
from gpuyard.notebook import cells
from gpuyard.notebook.command import run, words_of_cell
from gpuyard.notebook.following import follow
from gpuyard.notebook.view import summary, view_of

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle

_DETACH = ("-d", "--detach")


class JobFailedError(UsageError):
    """A cell that was followed has not completed; `job` is its handle."""

    def __init__(self, job: "JobHandle") -> None:
        super().__init__(summary(job.info))
        self.job = job

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: the fault is in the job, and not in this code."""
        return [f"JobFailedError: {self}"]


def register(shell: Any) -> None:
    """Add the magics to an IPython shell."""
    magics = Magics(shell)
    shell.register_magic_function(magics.cell, "cell", "gpuyard")
    shell.register_magic_function(magics.line, "line", "gpuyard")


class Magics:
    """The magics of one shell. Their server is looked for when they are used."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._client: Client | None = None

    def cell(self, line: str, cell: str) -> "JobHandle":
        """Run the cell as a job and follow it; the options are those of `gpuyard run`.

        Returns the job. With `-d` it returns at once. A job that does not complete is
        an error, so that the cells below do not run. Ctrl-C, or the stop of the
        notebook, leaves the job alone.
        """
        options = _words(line)
        detach = any(word in _DETACH for word in options)
        options = [word for word in options if word not in _DETACH]
        try:
            cells.check(cell)
            script = cells.write(cell, Path.cwd())
            job = self._submitted(words_of_cell(options, script))
            if not detach:
                self._follow(job)
        except GpuyardError as error:
            raise UsageError(str(error)) from None
        return job

    def line(self, line: str) -> None:
        """Run a command, such as `%gpuyard jobs`."""
        done = run(_words(line))
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        if done.returncode:
            raise UsageError(f"gpuyard {line} left with {done.returncode}")

    def _submitted(self, words: list[str]) -> "JobHandle":
        done = run(words)
        if done.returncode:
            fault = done.stderr.strip().removeprefix("gpuyard: ")
            raise UsageError(fault or f"gpuyard run left with {done.returncode}")
        sys.stderr.write(done.stderr)
        answer = json.loads(done.stdout)
        return self._connected().job(answer["id"])

    def _connected(self) -> Client:
        """The client, which the handles of all cells use."""
        if self._client is None:
            self._client = Client()
        return self._client

    def _follow(self, job: "JobHandle") -> None:
        view = view_of(self._shell)
        try:
            follow(self._connected(), job, view)
        except KeyboardInterrupt:
            sys.stdout.write(f"job {job.id[-8:]} goes on; job.cancel() ends it\n")
            return
        if job.state != "completed":
            raise JobFailedError(job)


def _words(line: str) -> list[str]:
    """The words behind a magic, quoted as in a shell; UsageError."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line}: {str(error).lower()}") from None
