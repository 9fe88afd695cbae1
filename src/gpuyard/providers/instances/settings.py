"""What the settings of every cloud may say: `[providers.aws]` and its like."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from gpuyard import __version__
from gpuyard.config.paths import Home
from gpuyard.domain.bills import CostPart
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model

Price = Annotated[Decimal, Field(ge=0)]
ExtraPart = Literal[CostPart.DISK, CostPart.ADDRESS, CostPart.TRAFFIC]


class InstanceSettings(StrictModel):
    """The settings that all clouds share; a cloud adds its own fields.

    - `types`: the types of machines to offer, by the cloud's name (`g5.xlarge`) or by
      GPU class (`A100`). Empty: all that the cloud has.
    - `image`: the image of a machine; unset, the cloud's own with drivers.
    - `disk_gb`: the size of its disk.
    - `max_price`: nothing is rented that costs more an hour, in the cloud's currency.
    - `spot`: whether spot machines are offered, to jobs that allow interruptions.
    - `server_url`: where a machine dials to join, `https://HOST:PORT`. Unset:
      `server.agents_host` or this host, and the port after that of
      `server.agents_listen`.
    - `install`: how gpuyard comes onto a machine: what pip is asked for.
    - `boot_timeout_s`: a machine that has not joined after this time is given up.
    - `silence_s`: a machine that does not answer for so long is given up; it ends
      itself when it has heard nothing for so long.
    - `sweep_s`: how often the cloud is asked for machines that nobody needs.
    - `extra_prices`: what is paid besides, in the cloud's currency: `disk` per GB and
      month, `address` per hour, `traffic` per GB; unset, those of the catalogue.
    - `traffic_gb_per_hour`: how much a machine is expected to send to the internet.
    - `compare_bills`: whether the cloud's bill is compared once a day.
    - `bill_tolerance_percent`: it is told when the bill differs by more than that.
    """

    home: str = Field(default_factory=lambda: str(Home.find().root))
    enabled: bool = True
    types: tuple[str, ...] = ()
    image: str = ""
    disk_gb: int = Field(default=100, ge=10, le=16_384)
    max_price: Decimal | None = Field(default=None, gt=0)
    spot: bool = True
    server_url: str = Field(default="", pattern=r"^(https://[^\s/]+:\d+)?$")
    install: str = f"gpuyard=={__version__}"
    boot_timeout_s: float = Field(default=900.0, gt=0)
    silence_s: float = Field(default=600.0, gt=0)
    poll_s: float = Field(default=5.0, gt=0)
    offers_s: float = Field(default=300.0, gt=0)
    sweep_s: float = Field(default=60.0, gt=0)
    extra_prices: Mapping[ExtraPart, Price] = Field(
        default_factory=dict[ExtraPart, Decimal]
    )
    traffic_gb_per_hour: float = Field(default=0.0, ge=0)
    compare_bills: bool = False
    bill_tolerance_percent: float = Field(default=5.0, ge=0, le=1000)
    max_pending: int = Field(default=8, ge=1)
    concurrency: int = Field(default=8, ge=1)

    @property
    def pays_for_address(self) -> bool:
        """Whether a machine has a public address that costs by the hour."""
        return False

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """The settings of a section; InvalidInputError names the field."""
        return parse_model(cls, dict(config))
