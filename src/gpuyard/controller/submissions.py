"""What jobs take along from their submission: the environment of the shell, and the
code of the working folder.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuyard.config.jobs import JobSettings
from gpuyard.config.paths import Home
from gpuyard.domain.carried_environment import Difference, carried_from, difference
from gpuyard.domain.contents import Stores
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_store import CodeMissingError, CodeStore
from gpuyard.storage.environments import EnvironmentMissingError, Environments

_SHOWN = 10
_LOOK_AGAIN_S = 60.0


class Submissions:
    """What is stored for jobs in `stores`. The code of the home itself is never
    stored.
    """

    def __init__(
        self,
        home: Home,
        settings: JobSettings,
        stores: Stores,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._home = home
        self._settings = settings
        self.stores = stores
        self.environments = Environments(stores, clock)
        self.code = CodeStore(stores, clock)
        self.reader = CodeReader(self.code)
        # The code that was found last, and when.
        self._found_code = ""
        self._found_at = 0.0

    def warnings(self, spec: JobSpec) -> list[str]:
        """What the owner of a job is told; InvalidInputError if the job names what is
        not stored.
        """
        if spec.submitted_code:
            self._check_code(spec.submitted_code)
        return self._keys_left_behind(spec) if spec.carried_environment else []

    def _check_code(self, digest: str) -> None:
        """InvalidInputError if it is not stored; thousands of jobs have the same."""
        is_recent = time.monotonic() - self._found_at < _LOOK_AGAIN_S
        if digest == self._found_code and is_recent:
            return
        try:
            self.code.get(digest)
        except CodeMissingError:
            raise _unknown("submitted_code", f"there is no code {digest}") from None
        self._found_code = digest
        self._found_at = time.monotonic()

    def _keys_left_behind(self, spec: JobSpec) -> list[str]:
        """The warning about exported variables that look like keys and that the job
        does not get; none without any.
        """
        digest = spec.carried_environment or ""
        try:
            environment = self.environments.get(digest)
        except EnvironmentMissingError:
            fault = f"there is no environment {digest}"
            raise _unknown("carried_environment", fault) from None
        given = spec.secrets.keys() | spec.environment.keys()
        names = [name for name in environment.keys if name not in given]
        if not names:
            return []
        shown = ", ".join(names[:_SHOWN])
        if len(names) > _SHOWN:
            shown += f" and {len(names) - _SHOWN} more"
        return [
            f"the job does not get what looks like a key: {shown}; run `gpuyard secret"
            " set NAME` once for what it needs, and submit with --secret NAME"
        ]

    def difference_to_server(self, digest: str) -> Difference | None:
        """How an environment differs from the one that this server would give; None if
        it is no longer stored.
        """
        try:
            carried = self.environments.get(digest)
        except EnvironmentMissingError:
            return None
        own = carried_from(os.environ, self._settings.never_carry)
        return difference(carried.variables, own.variables)

    def take_code(self, workdir: Path) -> str:
        """Store the code of a folder; returns its digest. Errors as for
        `CodeReader.take`.
        """
        limits = CodeLimits(
            self._settings.code_files, int(self._settings.code_mb * 1e6)
        )
        # The home may be in the folder, and what it holds changes all the time.
        return self.reader.take(workdir, limits, self._home.root.resolve())

    def with_present_code(self, spec: Mapping[str, Any]) -> dict[str, Any] | None:
        """`spec` with the code that its folder has now; without code if that cannot be
        stored. None if nothing changes.
        """
        if "submitted_code" not in spec:
            return None
        present = {
            name: value for name, value in spec.items() if name != "submitted_code"
        }
        with suppress(OSError, GpuyardError, ValueError):
            workdir = Path(spec.get("workdir") or Path.home())
            present["submitted_code"] = self.take_code(workdir)
        return None if present == spec else present


def _unknown(field: str, fault: str) -> InvalidInputError:
    remedy = "leave it out; `gpuyard run` fills it in"
    return InvalidInputError.of(field, fault, remedy)
