"""The settings of the ledger and of its backups."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gpuyard.config.sections import Hours, SettingsSection, absolute


class LedgerSettings(SettingsSection):
    """`keep_events`: how many events of the journal stay before images of the rows that
    they changed replace the oldest (see the guide on history).

    `url` is the address of a PostgreSQL database; unset, the one given to `gpuyard up
    --database`, else the home's own file.
    """

    url: str | None = Field(default=None, repr=False)
    keep_events: int = Field(default=1_000_000, ge=1000)


class BackupSettings(SettingsSection):
    """A backup of the ledger every `every_h` hours (0: none; unset: 24, and none with
    PostgreSQL) in the folder `path`, by default `backups` in the home. The newest
    `keep` stay.
    """

    every_h: Hours | None = None
    keep: int = Field(default=3, ge=1)
    path: Annotated[Path | None, AfterValidator(absolute)] = None
