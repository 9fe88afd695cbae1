"""What jobs take along from their submission: the environment of the shell, and the
code of the working folder.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuyard.config.accounts import Account, Accounts
from gpuyard.config.jobs import JobSettings
from gpuyard.config.paths import Home
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.carried_environment import (
    CarriedEnvironment,
    EnvironmentDifference,
    carried_from,
    difference,
)
from gpuyard.domain.contents import Stores
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.scripts import script_folder
from gpuyard.storage import account_work
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_store import CodeMissingError, CodeStore
from gpuyard.storage.code_tree import CodeTree
from gpuyard.storage.environments import EnvironmentMissingError, Environments
from gpuyard.storage.package_lists import PackageLists, PackagesMissingError
from gpuyard.storage.place import in_background

_SHOWN = 10
_LOOK_AGAIN_S = 60.0


class Submissions:
    """What is stored for jobs in `stores`. The code of the home itself is never
    stored. `accounts`: those that jobs run under; None where they run as the server
    does.
    """

    def __init__(
        self,
        home: Home,
        settings: JobSettings,
        stores: Stores,
        clock: Callable[[], float] = time.time,
        accounts: Accounts | None = None,
    ) -> None:
        self._home = home
        self._settings = settings
        self._accounts = accounts
        self.stores = stores
        self.environments = Environments(stores, clock)
        self.packages = PackageLists(stores)
        self.code = CodeStore(stores, clock)
        # Fills in the versions of the datasets of a job.
        self.pinned: Callable[[JobSpec, Visibility], JobSpec] = lambda spec, _: spec
        # The address at which a user has signed in.
        self.mailbox_of: Callable[[str], str | None] = lambda _: None
        self._reader = CodeReader(self.code)
        # The code that was found last, whose it is, and when.
        self._found_code = ("", "")
        self._found_at = 0.0

    def warnings(self, spec: JobSpec) -> list[str]:
        """What the owner of a job is told; InvalidInputError if the job names what is
        not stored.
        """
        if spec.submitted_code:
            self._check_code(spec.submitted_code, spec.project or "", spec.user)
        if spec.packages:
            self._check_packages(spec.packages, spec.user)
        return self._keys_left_behind(spec) if spec.carried_environment else []

    def kept_from(self, spec: Mapping[str, Any], user: str | None) -> str:
        """What a spec takes along that jobs of this user may not have, in words; empty
        if they may have all of it. All of it is stored.
        """
        project = spec.get("project") or ""
        what = ""
        try:
            if digest := spec.get("submitted_code"):
                what = "code"
                self._check_code(digest, project, user)
            if digest := spec.get("packages"):
                what = "list of packages"
                self._check_packages(digest, user)
            if digest := spec.get("carried_environment"):
                what = "environment"
                self._checked_environment(digest, user)
        except InvalidInputError:
            return what
        return ""

    def _check_code(self, digest: str, project: str, user: str | None) -> None:
        """InvalidInputError unless it is stored for jobs of this project and user;
        thousands of jobs have the same.
        """
        fault = f"there is no code {digest}"
        try:
            account = self._account_of(project, user)
        except InvalidInputError:
            raise _unknown("submitted_code", fault) from None
        name = account.name if account else ""
        is_recent = time.monotonic() - self._found_at < _LOOK_AGAIN_S
        if (digest, name) == self._found_code and is_recent:
            return
        try:
            is_own = self.code.get(digest).account == name
        except CodeMissingError:
            is_own = False
        if not is_own:  # nobody learns what is stored for others
            raise _unknown("submitted_code", fault)
        self._found_code = (digest, name)
        self._found_at = time.monotonic()

    def _check_packages(self, digest: str, user: str | None) -> None:
        """InvalidInputError unless this user has stored that list of packages."""
        fault = f"there are no packages {digest}"
        try:
            packages = self.packages.get(digest)
        except PackagesMissingError:
            raise _unknown("packages", fault) from None
        if packages.user != (user or ""):  # nobody learns what others have
            raise _unknown("packages", fault)

    def _checked_environment(self, digest: str, user: str | None) -> CarriedEnvironment:
        """InvalidInputError unless it was stored for jobs of this user."""
        fault = f"there is no environment {digest}"
        try:
            environment = self.environments.get(digest)
        except EnvironmentMissingError:
            raise _unknown("carried_environment", fault) from None
        if not environment.is_for(user):  # nobody learns what others have
            raise _unknown("carried_environment", fault)
        return environment

    def _account_of(self, project: str, user: str | None) -> Account | None:
        """The account of a job, if that is not the server's own user;
        InvalidInputError.
        """
        if self._accounts is None:
            return None
        return self._accounts.of_job(project, user or "")

    def _keys_left_behind(self, spec: JobSpec) -> list[str]:
        """The warning about exported variables that look like keys and that the job
        does not get; none without any.
        """
        digest = spec.carried_environment or ""
        environment = self._checked_environment(digest, spec.user)
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

    def difference_to_server(self, digest: str) -> EnvironmentDifference | None:
        """How an environment differs from the one that this server would give; None if
        it is no longer stored.
        """
        try:
            carried = self.environments.get(digest)
        except EnvironmentMissingError:
            return None
        own = carried_from(os.environ, self._settings.never_carry)
        return difference(carried.variables, own.variables)

    def take_code(
        self, workdir: Path, project: str = "", user: str | None = None
    ) -> str:
        """Store the code of a folder for jobs of this project that `user` submits;
        returns its digest. What their account may not read is not read; nor, without
        accounts, what is closed to some users of this host, unless the owner submits.

        InvalidInputError when it is too large, cannot be read, or is `/` or the home
        directory, or when these jobs have no account; OSError. Blocks on the disk.
        """
        limits = CodeLimits(
            self._settings.code_files, int(self._settings.code_mb * 1e6)
        )
        # The home may be in the folder, and what it holds changes all the time.
        home = self._home.root.resolve()
        account = self._account_of(project, user)
        if account is None:
            is_public = user is not None
            return self._reader.take(workdir, limits, home, is_public=is_public)
        return account_work.take_code(self.code, account, workdir, limits, home)

    def take_script(
        self, folder: Path, project: str, user: str | None
    ) -> tuple[str, str]:
        """Store the code in the folder of a script, for a job or a batch: its digest,
        empty if it runs the code of its start; and why, if that is not by the settings.
        Blocks on the disk.
        """
        if self._settings.live:
            return "", ""
        try:
            return self.take_code(folder, project, user), ""
        except InvalidInputError as error:
            (fault,) = error.faults
            return "", f"{fault.field} {fault.fault}"
        except (OSError, GpuyardError, ValueError) as error:
            return "", str(error)

    def code_changes(self, tree: CodeTree, workdir: Path) -> list[str]:
        """The paths of those files of `tree` that are gone or changed in `workdir`,
        as far as its account may see; none if that account is gone. Blocks on the disk.
        """
        if not tree.account:
            return self._reader.changes(tree, workdir)
        if self._accounts is None:
            return []
        try:
            account = self._accounts.find(tree.account, "its account")
            return account_work.changes(account, tree, workdir) or []
        except (OSError, InvalidInputError):
            return []

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
            present["submitted_code"] = self.take_code(
                code_folder(spec), spec.get("project", ""), spec.get("user")
            )
        return None if present == spec else present


class PresentCode:
    """The code that folders have now, read once for many jobs that run in one."""

    def __init__(self, submissions: Submissions) -> None:
        self._submissions = submissions
        self._found: dict[tuple[object, ...], str | None] = {}

    async def of(self, spec: Mapping[str, Any]) -> dict[str, Any] | None:
        """As `with_present_code`."""
        before = spec.get("submitted_code")
        if before is None:
            return None
        key = (code_folder(spec), before, spec.get("project"), spec.get("user"))
        if key not in self._found:
            read = self._submissions.with_present_code
            present = await in_background(read, spec)
            digest = before if present is None else present.get("submitted_code")
            self._found[key] = digest
        digest = self._found[key]
        if digest == before:
            return None
        others = {
            name: value for name, value in spec.items() if name != "submitted_code"
        }
        return others if digest is None else {**others, "submitted_code": digest}


def code_folder(spec: Mapping[str, Any]) -> Path:
    """Where the code of a job lies: in the folder of its script, or else in its working
    folder.
    """
    return script_folder(spec) or Path(spec.get("workdir") or Path.home())


def _unknown(field: str, fault: str) -> InvalidInputError:
    remedy = "leave it out; `gpuyard run` fills it in"
    return InvalidInputError.of(field, fault, remedy)
