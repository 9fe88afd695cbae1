"""What `[providers.alibaba]` may say."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    model_validator,
)

from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.validation import parse_model
from gpuyard.providers.alibaba.catalogue import types_of
from gpuyard.providers.instances.settings import InstanceSettings

SECRETS = frozenset({"access_key_id", "access_key_secret", "security_token"})
# Alibaba's own SDKs and command-line tool read these variables.
_VARIABLES = {
    "access_key_id": "ALIBABA_CLOUD_ACCESS_KEY_ID",
    "access_key_secret": "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
    "security_token": "ALIBABA_CLOUD_SECURITY_TOKEN",
    "region_id": "ALIBABA_CLOUD_REGION_ID",
}
_REMEDIES = {
    "access_key_id": f"set {_VARIABLES['access_key_id']}",
    "access_key_secret": f"set {_VARIABLES['access_key_secret']}",
    "region_id": f"name the region, as cn-hangzhou, or set {_VARIABLES['region_id']}",
    "security_group_id": "name a security group of the region, as sg-…",
    "vswitch_id": "name a vSwitch of the region, as vsw-…, or several in vswitches",
}


def _word(value: Any) -> Any:
    # pydantic's own message would repeat the secret value.
    if not isinstance(value, str | SecretStr):
        raise ValueError("is not text; write it in quotes")
    return value


def _matcher(pattern: str, what: str, example: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is no {what}; write it as {example}")
        return value

    return AfterValidator(check)


def _types(value: tuple[str, ...]) -> tuple[str, ...]:
    types_of(value)
    return value


def region_of(zone: str) -> str:
    """The region of a zone: `cn-hangzhou` of `cn-hangzhou-h`, `us-east-1` of
    `us-east-1a`.
    """
    letter_alone = re.fullmatch(r"(.+)-[a-z]", zone)
    return (
        letter_alone[1] if letter_alone else zone.rstrip("abcdefghijklmnopqrstuvwxyz")
    )


# Alibaba takes no earlier time of release than half an hour from now.
_LEAST_RELEASE_S = 2700.0

Secret = Annotated[SecretStr, BeforeValidator(_word)]
Region = Annotated[
    str, _matcher(r"[a-z]{2}-[a-z]+(-[a-z]+)*(-\d)?", "region", "cn-hangzhou")
]
Zone = Annotated[str, _matcher(r"[a-z]{2}(-[a-z]+)+-\d?[a-z]", "zone", "cn-hangzhou-h")]
SecurityGroup = Annotated[
    str, _matcher(r"sg-[a-z0-9]+", "security group", "sg-bp15ed6xe1yxeycg7o")
]
VSwitch = Annotated[str, _matcher(r"vsw-[a-z0-9]+", "vSwitch", "vsw-bp1s5fnvk4gn2tws0")]


class AlibabaConfig(InstanceSettings):
    """The account, and where and how its machines are rented; the settings that all
    clouds share are in InstanceSettings.

    - `access_key_id`, `access_key_secret`, `security_token`: an AccessKey, the token
      only with temporary ones; unset, from the environment.
    - `vswitch_id`: the network of machines in its own zone.
    - `vswitches`: the same for more zones, also of other regions.
    - `security_groups`: the security group of each region besides `region_id`.
    - `image_family`: the newest image of this family, where no `image` is named.
    - `internet_mbps`: how fast a machine may send, at a public address that it gets;
      0 for none, where the VPC has a NAT gateway.
    - `disk_category`: of system disks.
    - `release_after_s`: Alibaba deletes a machine that gpuyard has not asked for so
      long; 0: never.
    - `site`: with which of Alibaba's two companies the account is, `china`
      (aliyun.com) or `international` (alibabacloud.com): that one has its bills.
      Unset: the one of `region_id`.
    - `endpoint`: one address, with its scheme, in place of Alibaba's own.
    """

    provider: ClassVar[str] = "alibaba"

    access_key_id: Secret
    access_key_secret: Secret
    security_token: Secret | None = None
    region_id: Region
    security_group_id: SecurityGroup
    vswitch_id: VSwitch | None = None
    vswitches: Mapping[Zone, VSwitch] = Field(default_factory=dict[str, str])
    security_groups: Mapping[Region, SecurityGroup] = Field(
        default_factory=dict[str, str]
    )
    types: Annotated[tuple[str, ...], AfterValidator(_types)] = ()
    image_family: str = "acs:ubuntu_22_04_x64"
    disk_gb: int = Field(default=100, ge=20, le=2048)
    disk_category: str = "cloud_essd"
    internet_mbps: int = Field(default=100, ge=0, le=100)
    release_after_s: float = Field(default=3600.0, ge=0)
    site: Literal["china", "international"] | None = None
    endpoint: str = ""
    timeout_s: float = Field(default=20.0, gt=0)

    @model_validator(mode="after")
    def _regions_have_security_groups(self) -> "AlibabaConfig":
        for zone in self.vswitches:
            region = region_of(zone)
            if region != self.region_id and region not in self.security_groups:
                raise ValueError(
                    f"@security_groups@has none for {region}, where vswitches names"
                    f" {zone}; name one, as {region} = 'sg-…'"
                )
        return self

    @model_validator(mode="after")
    def _releases_only_silent_machines(self) -> "AlibabaConfig":
        least = max(_LEAST_RELEASE_S, 2 * self.silence_s)
        if 0 < self.release_after_s < least:
            raise ValueError(
                f"@release_after_s@is {self.release_after_s:g}, and Alibaba would"
                f" delete machines that work; write at least {least:g}, or 0 for never"
            )
        return self

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "AlibabaConfig":
        """InvalidInputError names a wrong or missing field, and never a secret."""
        values: dict[str, Any] = {
            key: os.environ[variable].strip()
            for key, variable in _VARIABLES.items()
            if os.environ.get(variable)
        }
        given = {key: value for key, value in config.items() if value not in (None, "")}
        values.update(given)
        if "vswitches" in values:
            values.setdefault("vswitch_id", None)
        missing = [
            Fault(key, "is missing", remedy)
            for key, remedy in _REMEDIES.items()
            if key not in values
        ]
        if missing:
            raise InvalidInputError(missing)
        return parse_model(cls, values)

    @property
    def regions(self) -> tuple[str, ...]:
        """Where machines may be, the main region first."""
        others = {region_of(zone) for zone in self.vswitches} - {self.region_id}
        return (self.region_id, *sorted(others))

    @property
    def type_names(self) -> tuple[str, ...]:
        """The types of machines that are offered."""
        return types_of(self.types)

    @property
    def bills_in_china(self) -> bool:
        """Whether the account's bills are at Alibaba's site for China."""
        if self.site is not None:
            return self.site == "china"
        return self.region_id.startswith("cn-") and self.region_id != "cn-hongkong"

    def security_group(self, region: str) -> str:
        """That of a region's machines."""
        return self.security_groups.get(region, self.security_group_id)
