"""The settings of what is stored: checkpoints, workspaces and secrets."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gpuyard.config.paths import Home
from gpuyard.config.sections import Period, SettingsSection, absolute, bucket_url
from gpuyard.domain.secret_names import secret_name


class StorageSettings(SettingsSection):
    """Where checkpoints are stored: in the folder or bucket `url` (see the guide on
    storage), by default `blobs` in the home. `options` are those of a bucket, such as
    `region` and `endpoint`; its credentials come from the environment.
    """

    url: str | None = None
    options: dict[str, str] = Field(default_factory=dict[str, str])


class WorkspaceSettings(SettingsSection):
    """`path`: where workspaces are (see the guide on workspaces); unset, in the home.
    Several servers need a path that all of them share. `url`: the bucket that holds
    them; then those below `path` are copies. `options`: as for the storage.

    The workspaces of a project may take `quota_gb` together, or what `quotas_gb` says
    of it; 0 for no limit. One that nobody has used for `remove_after_days` is removed
    (0: never), `notice_days` after its users were warned. They are looked at every
    `look_s`.
    """

    path: Annotated[Path | None, AfterValidator(absolute)] = None
    url: Annotated[str | None, AfterValidator(bucket_url)] = None
    options: dict[str, str] = Field(default_factory=dict[str, str])
    quota_gb: float = Field(default=100.0, ge=0, le=1e9)
    quotas_gb: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = Field(
        default_factory=dict[str, float]
    )
    remove_after_days: float = Field(default=30.0, ge=0, le=36500)
    notice_days: float = Field(default=7.0, ge=0, le=36500)
    look_s: Period = 600.0

    def root(self, home: Home) -> Path:
        """The folder of all workspaces."""
        return self.path or home.workspaces


class SecretSettings(SettingsSection):
    """Where the values of jobs' secrets come from (see the guide on secrets): the store
    in the folder `path` (unset, in the home; several servers need one that they share),
    these variables of the server (`environment`), the files in `folder` (such as a
    mounted Secret of Kubernetes), and `command`, in which `{name}` stands for the
    secret. It gets `command_environment` in addition to what jobs get.
    """

    path: Annotated[Path | None, AfterValidator(absolute)] = None
    environment: tuple[Annotated[str, AfterValidator(secret_name)], ...] = ()
    folder: Annotated[Path | None, AfterValidator(absolute)] = None
    command: tuple[str, ...] = ()
    command_timeout_s: Period = 10.0
    command_environment: tuple[str, ...] = ()

    def root(self, home: Home) -> Path:
        """The folder of the store."""
        return self.path or home.secrets
