"""The settings: read from `gpuyard.toml`, and then from the environment
(`GPUYARD_SERVER__PORT=8400`), which wins.
"""

import json
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gpuyard.config.billing import BillingSettings
from gpuyard.config.disk import DiskSettings
from gpuyard.config.git import GitSettings
from gpuyard.config.gpus import GpuSettings
from gpuyard.config.images import ImageSettings as ImageSettings
from gpuyard.config.jobs import JobSettings
from gpuyard.config.ledger import BackupSettings, LedgerSettings
from gpuyard.config.notify import NotifySettings as NotifySettings
from gpuyard.config.paths import Home
from gpuyard.config.pools import PoolName, PoolSettings, check_pools
from gpuyard.config.rented import RentedSettings
from gpuyard.config.resource_manager import ResourceManagerSettings
from gpuyard.config.retention import RetentionSettings
from gpuyard.config.sections import (
    Gigabytes,
    Period,
    Seconds,
    SettingsSection,
    absolute,
    bucket_url,
)
from gpuyard.config.server import ServerSettings
from gpuyard.config.shares import FairShareSettings, QuotaSettings
from gpuyard.config.sharing import SharedSettings
from gpuyard.config.sign_in import SignInSettings
from gpuyard.config.verification import VerificationSettings
from gpuyard.domain.end_notices import NoticeAddresses
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.models import ModelSpec
from gpuyard.domain.offers import Strategy
from gpuyard.domain.scripts import ScriptSpec
from gpuyard.domain.secret_names import secret_name
from gpuyard.domain.tiers import Tier
from gpuyard.domain.validation import faults_of

AccountName = Annotated[str, Field(min_length=1)]
_SIMULATED = re.compile(r"\s*[1-9]\d{0,3}\s*x\s*[1-9]\d{0,3}(\.\d+)?\s*")


def _simulated(text: str | None) -> str | None:
    if text is not None and not _SIMULATED.fullmatch(text):
        raise ValueError(
            f"{text!r} is not COUNTxGIGABYTES; write 5x24 for five GPUs of 24 GB"
        )
    return text


class SchedulerSettings(SettingsSection):
    """`policy`: how waiting jobs are ordered (see the guide on scheduling). `strategy`:
    how offers are ranked (see the guide on offers). A waiting job gains one priority
    after each `ageing_s`. The pauses between retries grow from `retry_base_s` to
    `retry_max_s`. A job without a time limit is kept off GPUs that are reserved within
    `reservation_notice` from now. A job that was preempted `spot_attempts` times takes
    a spot offer only if nothing else is left.
    """

    policy: Literal["gittins", "backfill", "fcfs", "fair"] = "gittins"
    strategy: Strategy = Strategy.BALANCED
    ageing_s: Period = 21600.0
    retry_base_s: Seconds = 1.0
    retry_max_s: Seconds = 300.0
    reservation_notice: Period = 7 * 86400.0
    spot_attempts: int = Field(default=3, ge=0)


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


class ResidencySettings(SettingsSection):
    """Resident models. `policy`: when they are loaded, and when they are unloaded for
    scripts (see the guide on models).

    A request for a model waits at most `timeout_s`. A model that answers and says
    nothing for `silent_s` is given up (0: never; a prompt's own `timeout_s` goes
    first).
    """

    policy: Literal["cost", "threshold", "round_robin", "lru", "static"] = "cost"
    timeout_s: Seconds = 600.0
    silent_s: Seconds = 1200.0


class StorageSettings(SettingsSection):
    """Where checkpoints are stored: in the folder or bucket `url` (see the guide on
    storage), by default `blobs` in the home. `options` are those of a bucket, such as
    `region` and `endpoint`; its credentials come from the environment.
    """

    url: str | None = None
    options: dict[str, str] = Field(default_factory=dict[str, str])


class DefaultSettings(SettingsSection):
    """What jobs get that do not say it themselves. `gpus = "auto"`: a job whose program
    is meant for a GPU gets one, where there is one (see the guide on job files).
    `packages = "auto"`: a bare `python` gets the packages that are named beside it.

    With `recommend`, a program that `gpuyard run` starts gets what it needs, as far as
    that is known. The command asks before what may cost more than `confirm_cost`.
    `notify`: whom it tells of the end, without `--notify`.
    """

    gpus: Literal["auto"] | None = None
    packages: Literal["auto"] | None = None
    recommend: bool = True
    confirm_cost: float = Field(default=20.0, ge=0)
    notify: NoticeAddresses = ()


class SpoolSettings(SettingsSection):
    """Tasks as files below `path` (see the guide on models); without it there is no
    spool.
    """

    path: Path | None = None


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


# A job finds its node's name where the section `node` would stand.
_JOBS_NODE = "gpuyard_node"
_IN_A_JOB = "GPUYARD_ATTEMPT_ID"


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="GPUYARD_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        validate_default=True,
    )

    server: ServerSettings = ServerSettings()
    shared: SharedSettings = SharedSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    fair_share: FairShareSettings = FairShareSettings()
    quotas: QuotaSettings = QuotaSettings()
    node: NodeSettings = NodeSettings()
    disk: DiskSettings = DiskSettings()
    gpus: GpuSettings = GpuSettings()
    jobs: JobSettings = JobSettings()
    billing: BillingSettings = BillingSettings()
    ledger: LedgerSettings = LedgerSettings()
    retention: RetentionSettings = RetentionSettings()
    backup: BackupSettings = BackupSettings()
    resource_manager: ResourceManagerSettings = ResourceManagerSettings()
    spool: SpoolSettings = SpoolSettings()
    storage: StorageSettings = StorageSettings()
    images: ImageSettings = ImageSettings()
    defaults: DefaultSettings = DefaultSettings()
    notify: NotifySettings = NotifySettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    secrets: SecretSettings = SecretSettings()
    sign_in: SignInSettings = SignInSettings()
    git: GitSettings = GitSettings()
    verification: VerificationSettings = VerificationSettings()
    residency: ResidencySettings = ResidencySettings()
    models: dict[str, ModelSpec] = Field(default_factory=dict[str, ModelSpec])
    scripts: dict[str, ScriptSpec] = Field(default_factory=dict[str, ScriptSpec])
    tiers: tuple[Tier, ...] = ()
    providers: dict[str, dict[str, Any]] = Field(
        default_factory=dict[str, dict[str, Any]]
    )
    pools: dict[PoolName, PoolSettings] = Field(
        default_factory=dict[PoolName, PoolSettings]
    )

    @model_validator(mode="after")
    def _pools_can_be(self) -> Self:
        listen = self.server.agents_listen
        check_pools(self.pools, self.providers.keys(), may_join=listen is not None)
        return self

    @model_validator(mode="after")
    def _default_models_exist(self) -> Self:
        for task_type, model in self.resource_manager.default_models.items():
            if model not in self.models:
                known = ", ".join(self.models) or "none"
                raise ValueError(
                    f"@resource_manager.default_models.{task_type}@there is no model"
                    f" {model!r}; name one that has a section [models.NAME]: {known}"
                )
        return self

    @model_validator(mode="after")
    def _copies_belong_to_one_account(self) -> Self:
        if self.workspaces.url and self.node.has_accounts:
            raise ValueError(
                "@workspaces.url@is not possible where jobs have accounts of their own:"
                " what comes from a bucket belongs to none of them; name a path instead"
            )
        return self

    @model_validator(mode="after")
    def _browsers_reach_it_safely(self) -> Self:
        self.sign_in.check_reached_safely(self.server.host, self.server.url)
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Explicit values, then the environment, then the file."""
        file_settings: PydanticBaseSettingsSource
        if _file and _file.suffix == ".json":
            file_settings = JsonConfigSettingsSource(settings_cls, _file)
        else:
            file_settings = TomlConfigSettingsSource(settings_cls, _file)
        if isinstance(env_settings, EnvSettingsSource) and _IN_A_JOB in os.environ:
            settings = dict(env_settings.env_vars)
            settings.pop(_JOBS_NODE, None)
            env_settings.env_vars = settings
        return init_settings, env_settings, file_settings


_SECRET = re.compile(r"(^|_)(secret|secret_key|secret_access_key|password|token)$")
_ENGINE_SECRET = re.compile(rf"{_SECRET.pattern}|(^|_)api_?key$")
_file: Path | None = None


def load_settings(home: Home, file: Path | None = None) -> Settings:
    """The settings of `home`, or those that it would have with `file`;
    InvalidInputError names the file or the variable, the field, its fault and the
    remedy.
    """
    global _file
    _file = file or home.settings
    if not _file.is_file():
        _refuse_missing(home, _file, file)
    try:
        return _without_secrets(Settings())
    except ValidationError as error:
        faults = faults_of(error, Settings)
        raise InvalidInputError(
            [replace(fault, field=_origin(fault.field)) for fault in faults]
        ) from None
    except SettingsError as error:
        name = re.sub(r'.*field "(\w+)".*', r"GPUYARD_\1", str(error)).upper()
        raise InvalidInputError.of(
            name, "is not JSON", "write a list or a section as JSON"
        ) from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        form = "JSON" if _file.suffix == ".json" else "TOML"
        raise InvalidInputError.of(
            str(_file), f"is not valid {form}: {error}", "correct the file"
        ) from None
    except (TypeError, AttributeError):  # JSON that is not an object
        raise InvalidInputError.of(
            str(_file), "is no table of settings", "write a JSON object"
        ) from None
    except OSError as error:
        raise InvalidInputError.of(
            str(_file), f"cannot be read: {error.strerror}", "see its mode"
        ) from None
    finally:
        _file = None


def _refuse_missing(home: Home, found: Path, given: Path | None) -> None:
    """Refuse settings that are not there, unless nobody has named them."""
    fault = f"names {found}, which is no file"
    remedy = "name a TOML or JSON file"
    if given:
        raise InvalidInputError.of("--config", fault, remedy)
    if os.environ.get("GPUYARD_CONFIG"):
        raise InvalidInputError.of("GPUYARD_CONFIG", fault, f"{remedy}, or unset it")
    if found != home.own_settings:
        remedy = "name another with `gpuyard up --config FILE`, or `--config default`"
        raise InvalidInputError.of(str(home.settings_name), fault, remedy)


def _without_secrets(settings: Settings) -> Settings:
    """Refuse secrets in the file, because files are copied and backed up: the settings
    of providers hold keys to clouds.
    """
    fields = [
        f"providers.{name}.{key}"
        for name, section in settings.providers.items()
        for key in section
        if _SECRET.search(key)
    ]
    fields += [
        f"verification.executors.{name}.engine.options.{key}"
        for name, executor in settings.verification.executors.items()
        for key in executor.engine.options
        if _ENGINE_SECRET.search(key)
    ]
    faults: list[Fault] = []
    for field in fields:
        origin = _origin(field)
        if origin.startswith(f"{_file}: "):
            fault = "is a secret, which no file should hold"
            remedy = f"set {_variable(field)} in the environment"
            faults.append(Fault(origin, fault, remedy))
    if faults:
        raise InvalidInputError(faults)
    return settings


def _variable(field: str) -> str:
    return f"GPUYARD_{field.replace('.', '__').upper()}"


def _origin(field: str) -> str:
    """Where a setting was given: in the variable that holds it or its section, else in
    the file; then the field in that.
    """
    steps = field.split(".")
    for depth in range(len(steps), 0, -1):
        variable = _variable(".".join(steps[:depth]))
        if variable in os.environ:
            return ".".join([variable, *steps[depth:]])
    return f"{_file}: {field}"
