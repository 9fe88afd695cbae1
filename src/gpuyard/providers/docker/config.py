"""What `[providers.docker]` may say."""

from decimal import Decimal

from pydantic import Field

from gpuyard.config.paths import Home
from gpuyard.config.settings import StorageSettings
from gpuyard.domain.strict_model import StrictModel


class DockerConfig(StrictModel):
    """The settings of `[providers.docker]`.

    - `host`: the daemon's address, by default the one that the `docker` command uses.
    - `workspace`: a folder of this host that each container sees as `/workspace`,
      unless its job names a gpuyard workspace.
    - `dataset_cache_gb`: how much copies of the datasets of containers may take.
    - `writable_root`: whether jobs may change the image's files.
    """

    home: str = Field(default_factory=lambda: str(Home.find().root))
    storage: StorageSettings = StorageSettings()
    enabled: bool = True
    host: str | None = None
    workspace: str | None = None
    writable_root: bool = False
    network: str = "bridge"
    dataset_cache_gb: float = Field(default=100.0, gt=0)
    max_processes: int = Field(default=8192, ge=1)
    price_per_hour: Decimal = Field(default=Decimal(0), ge=0)
    currency: str = "USD"
    concurrency: int = Field(default=8, ge=1)
    poll_s: float = Field(default=1.0, gt=0)
