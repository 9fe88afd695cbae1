"""Settings: `gpuyard.toml`, then the environment (`GPUYARD_SERVER__PORT=8400`), which wins."""

import json
import os
import re
import tomllib
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gpuyard.config.paths import Home
from gpuyard.config.sections import Gigabytes, Period, Seconds, Section
from gpuyard.config.verification import VerificationSettings
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.images import IMAGES, Image, read_catalogue
from gpuyard.domain.models import ModelSpec
from gpuyard.domain.offers import Strategy
from gpuyard.domain.scripts import ScriptSpec
from gpuyard.domain.tiers import Tier
from gpuyard.domain.validation import faults_of
from gpuyard.domain.webhooks import Webhooks


def _simulated(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"\s*[1-9]\d{0,3}\s*x\s*[1-9]\d{0,3}(\.\d+)?\s*", text):
        raise ValueError(f"{text!r} is not COUNTxGIGABYTES; write 5x24 for five GPUs of 24 GB")
    return text


class ServerSettings(Section):
    """Where the server listens (port 0: a free one). It leaves after `idle_exit_s` without work (0: never).

    `url` is how other servers and agents reach it, where that is not its listening address (behind a proxy with TLS).
    """

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    url: str | None = None
    idle_exit_s: Seconds = 1800.0


class SchedulerSettings(Section):
    """`policy`: whose turn it is (see the guide on scheduling); `ageing_s`: a waiting job gains one priority each;
    retries back off from `retry_base_s` to `retry_max_s`. `strategy`: which offer is best (see the guide on offers)."""

    policy: Literal["gittins", "backfill", "fcfs"] = "gittins"
    strategy: Strategy = Strategy.BALANCED
    ageing_s: Period = 21600.0
    retry_base_s: Seconds = 1.0
    retry_max_s: Seconds = 300.0


class NodeSettings(Section):
    """The local node. `max_processes` bounds each job (a fork bomb's fence); `keep_checkpoints` newest are kept.

    Every `heartbeat_s` agent and server tell each other that they live; five missing beats end their link.
    `simulate_gpus`: instead of this host's own GPUs so many that are not there, such as `5x24` (of 24 GB each).
    """

    max_log_gb: Gigabytes = 1.0
    max_processes: int = Field(default=8192, ge=1)
    keep_checkpoints: int = Field(default=5, ge=1)
    progress_s: Period = 0.5
    usage_s: Period = 5.0
    checkpoint_scan_s: Period = 0.5
    discovery_s: Period = 5.0
    heartbeat_s: Period = 2.0
    simulate_gpus: Annotated[str | None, AfterValidator(_simulated)] = None


class BillingSettings(Section):
    """What a job on one's own hardware costs; unset, its tier's list price.

    `currency` is that of bills and of `max_price`; `rates` says what one unit of another is worth in it.
    """

    local_price_per_hour: Decimal | None = Field(default=None, ge=0)
    currency: str = "USD"
    rates: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict[str, float])

    def rate(self, currency: str) -> float | None:
        """What one unit of `currency` is worth in ours; None when nobody said."""
        return 1.0 if currency == self.currency else self.rates.get(currency)


class ResidencySettings(Section):
    """Resident models. `policy`: when they are loaded and when they make room for scripts (see the guide on models).

    A request for a model waits at most `timeout_s`.
    """

    policy: Literal["cost", "threshold", "round_robin", "lru", "static"] = "cost"
    timeout_s: Seconds = 600.0


class Role(StrEnum):
    """What a GPU is for. Models that live on a brain's GPU are never evicted."""

    BRAIN_PRIMARY = "brain_primary"
    BRAIN_SECONDARY = "brain_secondary"
    WORKER_OR_SCRIPT = "worker_or_script"


class EvictionSettings(Section):
    """When scripts evict, under the policy `threshold`; idle models go first in any case, and busy ones never."""

    min_script_queue_for_evict: int = Field(default=5, ge=0)
    prefer_idle_llm_eviction: Literal[True] = True
    never_evict_brain: bool = True


class BatchSettings(Section):
    """A batch of so many items or more has the GPUs for itself, unless it says otherwise; then what was loaded comes
    back."""

    auto_exclusive_threshold: int = Field(default=50, ge=1)
    reload_llms_after_batch: bool = True


class ResourceManagerSettings(Section):
    """The seed document's own table. `gpu_count` is advice: what is found wins. `gpu_roles` are by index or UUID.

    `boot_times` are seconds by model, until they are measured.
    """

    gpu_count: int | None = Field(default=None, ge=0)
    gpu_roles: dict[str, Role] = Field(default_factory=dict[str, Role])
    boot_times: dict[str, Period] = Field(default_factory=dict[str, Period])
    eviction_policy: EvictionSettings = EvictionSettings()
    batch_settings: BatchSettings = BatchSettings()

    def is_brain(self, index: int, uuid: str) -> bool:
        """Whether what lives on this GPU stays there."""
        role = self.gpu_roles.get(uuid) or self.gpu_roles.get(str(index), Role.WORKER_OR_SCRIPT)
        return self.eviction_policy.never_evict_brain and role is not Role.WORKER_OR_SCRIPT


class StorageSettings(Section):
    """Where checkpoints are kept: in the folder or bucket `url` (see the guide on storage), by default `blobs` in the
    home. `options` are a bucket's, such as `region` and `endpoint`; its credentials come from the environment.
    """

    url: str | None = None
    options: dict[str, str] = Field(default_factory=dict[str, str])


class ImageSettings(Section):
    """`catalogue`: a file of images that come before those built in (see the guide on images)."""

    catalogue: Path | None = None

    def read(self) -> tuple[Image, ...]:
        """The images in force; InvalidInputError names the row and the field."""
        if self.catalogue is None:
            return IMAGES
        try:
            return read_catalogue(self.catalogue.expanduser().read_text())
        except OSError as error:
            fault = f"is {self.catalogue}, which cannot be read: {error.strerror}"
            raise InvalidInputError.of("images.catalogue", fault, "name a TOML file") from None


class SpoolSettings(Section):
    """Tasks as files under `path` (see the guide on models); unset, there is no spool."""

    path: Path | None = None


def _absolute(path: Path | None) -> Path | None:
    found = path.expanduser() if path else None
    if found and not found.is_absolute():
        raise ValueError(f"{str(path)!r} is no absolute path; server, agents and jobs each run somewhere else")
    return found


class WorkspaceSettings(Section):
    """`path`: where workspaces lie (see the guide on workspaces); unset, in the home. Several servers need one that all
    of them share."""

    path: Annotated[Path | None, AfterValidator(_absolute)] = None

    def root(self, home: Home) -> Path:
        """The folder in force."""
        return self.path or home.workspaces


class NotifySettings(Section):
    """Who is told of what happens (see the guide on notifications)."""

    webhooks: Webhooks = ()


class LedgerSettings(Section):
    """`keep_events`: how many journal rows stay before the oldest are folded into a snapshot.

    `url` is the address of a PostgreSQL database; unset, what `gpuyard up --database` said, else the home's own file.
    """

    url: str | None = Field(default=None, repr=False)
    keep_events: int = Field(default=1_000_000, ge=1000)


class Settings(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(
        env_prefix="GPUYARD_", env_nested_delimiter="__", frozen=True, extra="forbid", validate_default=True
    )

    server: ServerSettings = ServerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    node: NodeSettings = NodeSettings()
    billing: BillingSettings = BillingSettings()
    ledger: LedgerSettings = LedgerSettings()
    resource_manager: ResourceManagerSettings = ResourceManagerSettings()
    spool: SpoolSettings = SpoolSettings()
    storage: StorageSettings = StorageSettings()
    images: ImageSettings = ImageSettings()
    notify: NotifySettings = NotifySettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    verification: VerificationSettings = VerificationSettings()
    residency: ResidencySettings = ResidencySettings()
    models: dict[str, ModelSpec] = Field(default_factory=dict[str, ModelSpec])
    scripts: dict[str, ScriptSpec] = Field(default_factory=dict[str, ScriptSpec])
    tiers: tuple[Tier, ...] = ()
    providers: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])

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
        source = JsonConfigSettingsSource if _file and _file.suffix == ".json" else TomlConfigSettingsSource
        return init_settings, env_settings, source(settings_cls, _file)


_SECRET = re.compile(r"(^|_)(secret|secret_key|secret_access_key|password|token)$")
_ENGINES_SECRET = re.compile(rf"{_SECRET.pattern}|(^|_)api_?key$")
_file: Path | None = None


def load_settings(home: Home) -> Settings:
    """The settings of `home`; InvalidInputError names the file or the variable, the field, its fault and the remedy."""
    global _file
    _file = home.settings
    if os.environ.get("GPUYARD_CONFIG") and not _file.is_file():
        raise InvalidInputError.of(
            "GPUYARD_CONFIG", f"names {_file}, which is no file", "name a TOML or JSON file, or unset it"
        )
    try:
        return _without_secrets(Settings())
    except ValidationError as error:
        faults = faults_of(error, Settings)
        raise InvalidInputError([replace(fault, field=_origin(fault.field)) for fault in faults]) from None
    except SettingsError as error:
        name = re.sub(r'.*field "(\w+)".*', r"GPUYARD_\1", str(error)).upper()
        raise InvalidInputError.of(name, "is not JSON", "write a list or a section as JSON") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        form = "JSON" if _file.suffix == ".json" else "TOML"
        raise InvalidInputError.of(str(home.settings), f"is not valid {form}: {error}", "correct the file") from None
    except (TypeError, AttributeError):  # JSON, and something else than an object
        raise InvalidInputError.of(str(home.settings), "is no table of settings", "write a JSON object") from None
    except OSError as error:
        raise InvalidInputError.of(str(home.settings), f"cannot be read: {error.strerror}", "see its mode") from None
    finally:
        _file = None


def _without_secrets(settings: Settings) -> Settings:
    """Refuse what would be a secret in a file, of which there are copies and backups: providers have keys to clouds."""
    fields = [f"providers.{name}.{key}" for name, section in settings.providers.items() for key in section
              if _SECRET.search(key)]  # fmt: skip
    fields += [f"verification.executors.{name}.engine.options.{key}" for name, one in
               settings.verification.executors.items() for key in one.engine.options
               if _ENGINES_SECRET.search(key)]  # fmt: skip
    faults = [Fault(origin, "is a secret, which no file should hold", f"set {_variable(field)} in the environment")
              for field in fields if (origin := _origin(field)).startswith(f"{_file}: ")]  # fmt: skip
    if faults:
        raise InvalidInputError(faults)
    return settings


def _variable(field: str) -> str:
    return f"GPUYARD_{field.replace('.', '__').upper()}"


def _origin(field: str) -> str:
    """Where a setting was given: the variable that holds it or its section, else the file, and the field in it."""
    steps = field.split(".")
    for depth in range(len(steps), 0, -1):
        variable = _variable(".".join(steps[:depth]))
        if variable in os.environ:
            return ".".join([variable, *steps[depth:]])
    return f"{_file}: {field}"
