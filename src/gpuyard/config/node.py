"""The settings of a node: the limits of its jobs, how often it is looked at, and the
accounts of its jobs.
"""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gpuyard.config.rented import RentedSettings
from gpuyard.config.sections import Gigabytes, Period, SettingsSection, absolute

AccountName = Annotated[str, Field(min_length=1)]
_SIMULATED = re.compile(r"\s*[1-9]\d{0,3}\s*x\s*[1-9]\d{0,3}(\.\d+)?\s*")


def _simulated(text: str | None) -> str | None:
    if text is not None and not _SIMULATED.fullmatch(text):
        raise ValueError(
            f"{text!r} is not COUNTxGIGABYTES; write 5x24 for five GPUs of 24 GB"
        )
    return text


class NodeSettings(SettingsSection):
    """The local node. `max_processes` limits each job, against fork bombs; the newest
    `keep_checkpoints` of each job are kept.

    A job that names no memory may use all of the host but `reserve_memory_gb`; unset,
    the reserve is 5 % of the host's memory, at least 1 GB and at most half.

    Agent and server send a heartbeat every `heartbeat_s`; after five missing ones they
    end their link. `simulate_gpus`: simulated GPUs in place of this host's own, such as
    `5x24` (five of 24 GB each).

    Of an attempt, at most `artifact_files` artifacts of `artifacts_gb` together are
    kept.

    Copies of datasets may take `dataset_cache_gb` together, and environments of
    packages `package_cache_gb`; then those that were not used for the longest time make
    room for others.

    The account of a job (see the guide on accounts) is the one that `accounts` names
    for its project, else `run_as`; unset, the agent's own. With `run_as_submitter`, it
    is that of the user who submitted it, if the server knows it (see the guide on the
    shared workstation). `allow_system_accounts` may
    be used although they are not a person's. The jobs' own folders are in
    `accounts_folder`. `job_umask` is octal; with `no_new_privileges`, programs such as
    `sudo` gain nothing.
    """

    max_log_gb: Gigabytes = 1.0
    max_processes: int = Field(default=8192, ge=1)
    reserve_memory_gb: Gigabytes | None = None
    keep_checkpoints: int = Field(default=5, ge=1)
    artifact_files: int = Field(default=1000, ge=1, le=100_000)
    artifacts_gb: Gigabytes = 20.0
    dataset_cache_gb: Gigabytes = 100.0
    package_cache_gb: Gigabytes = 50.0
    progress_s: Period = 0.5
    usage_s: Period = 5.0
    checkpoint_scan_s: Period = 0.5
    discovery_s: Period = 5.0
    heartbeat_s: Period = 2.0
    simulate_gpus: Annotated[str | None, AfterValidator(_simulated)] = None
    run_as: str | None = Field(default=None, min_length=1)
    run_as_submitter: bool = False
    accounts: dict[str, AccountName] = Field(default_factory=dict[str, AccountName])
    allow_system_accounts: tuple[str, ...] = ()
    accounts_folder: Annotated[Path, AfterValidator(absolute)] = Path(
        "/var/lib/gpuyard"
    )
    job_umask: str = Field(default="077", pattern=r"^0?[0-7]{3}$")
    no_new_privileges: bool = False
    rented: RentedSettings = RentedSettings()

    @property
    def has_accounts(self) -> bool:
        """Whether jobs may run under other accounts than the agent's."""
        return bool(self.run_as or self.accounts or self.run_as_submitter)
