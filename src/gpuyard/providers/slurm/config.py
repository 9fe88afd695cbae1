"""What `[providers.slurm]` may say."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from pydantic import (
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gpuyard.config.paths import Home
from gpuyard.config.settings import StorageSettings
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model

VERSIONS = ("v0.0.38", "v0.0.37")
"""The versions of slurmrestd's API that we support, newest first."""


class GpuType(StrictModel):
    """One GPU type of the cluster's `gres`. Slurm knows only its name."""

    memory_gb: float = Field(default=0.0, ge=0)
    price_per_hour: Decimal | None = Field(default=None, ge=0)


class SlurmSettings(StrictModel):
    """The settings of `[providers.slurm]`.

    - `spool`: a folder that the nodes share with the host that submits.
    - `host`: a login node to reach over ssh; unset, this host submits.
    - `folders`: `shared` when the nodes see the folders and workspaces of jobs under
      the same paths as this host. `copied`: jobs get copies, and changes in a workspace
      are copied back. Unset: `shared` where this host submits, else `copied`.
    - `most_checkpoint_gb`: over ssh, larger checkpoints are not copied back.
    - `dataset_cache_gb`: how much copies of datasets may take in the spool.
    - `environment` is given to Slurm's commands, `sbatch_options` to each `sbatch`.
    - `timeout_s`: a command that takes longer is ended.
    - `rest`: the address of a slurmrestd to use instead of the commands.
    """

    home: str = Field(default_factory=lambda: str(Home.find().root))
    storage: StorageSettings = StorageSettings()
    enabled: bool = True
    spool: str | None = None
    folders: Literal["shared", "copied"] | None = None
    most_checkpoint_gb: float = Field(default=4.0, ge=0)
    dataset_cache_gb: float = Field(default=100.0, gt=0)
    host: str | None = Field(default=None, pattern=r"^[^-/\s][^/\s]*$")
    ssh_options: tuple[str, ...] = ()
    rest: str | None = Field(default=None, pattern=r"^(unix:///.+|https?://[^/@]+/?)$")
    rest_version: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    python: str = "python3"
    environment: dict[str, str] = Field(default_factory=dict)
    sbatch_options: tuple[str, ...] = ()
    gpus: dict[str, GpuType] = Field(default_factory=dict[str, GpuType])
    price_per_hour: Decimal = Field(default=Decimal(0), ge=0)
    currency: str = "USD"
    max_pending: int = Field(default=8, ge=1)
    concurrency: int = Field(default=8, ge=1)
    poll_s: float = Field(default=2.0, gt=0)
    timeout_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _has_absolute_spool(self) -> "SlurmSettings":
        if self.host is not None and not (self.spool or "").startswith("/"):
            fault = "is missing"
            if self.spool is not None:
                fault = f"is {self.spool!r}, which begins with no /"
            raise ValueError(
                f"@spool@{fault}; over ssh name a folder that the login node and the"
                " nodes share"
            )
        return self

    @property
    def copies(self) -> bool:
        """Whether jobs run in copies of their folders."""
        if self.folders is None:
            return self.host is not None
        return self.folders == "copied"

    @field_validator("rest_version")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        if value is not None and value not in VERSIONS:
            raise ValueError(f"{value!r} is not known; known are {', '.join(VERSIONS)}")
        return value

    @field_validator("sbatch_options")
    @classmethod
    def _are_for_sbatch(
        cls, value: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        if value and info.data.get("rest"):
            raise ValueError("cannot be sent to slurmrestd; leave them out, or `rest`")
        return value

    @field_validator("environment")
    @classmethod
    def _holds_no_token(cls, value: dict[str, str]) -> dict[str, str]:
        if "SLURM_JWT" in value:
            raise ValueError(
                "SLURM_JWT is a secret, which no file should hold; set it in gpuyard's"
                " own environment"
            )
        return value

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "SlurmSettings":
        """InvalidInputError names the field that is wrong."""
        return parse_model(cls, dict(config))
