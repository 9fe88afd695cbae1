"""What `[providers.aws]` may say."""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    model_validator,
)

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.validation import parse_model
from gpuyard.providers.instances.settings import InstanceSettings

SECRETS = frozenset({"access_key_id", "secret_access_key", "session_token"})
# AWS's own tools read these.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_IMAGE = re.compile(r"ami-[0-9a-f]{8,17}|/[\w./-]+")


def _word(value: Any) -> Any:
    # pydantic's own message would repeat the secret value.
    if not isinstance(value, str | SecretStr):
        raise ValueError("is not text; write it in quotes")
    return value


def _region(value: str) -> str:
    if not _REGION.fullmatch(value):
        raise ValueError(f"{quoted(value)} is no region; write it as us-east-1")
    return value


def _subnet(value: str) -> str:
    if not re.fullmatch(r"subnet-[0-9a-f]{8,17}", value):
        raise ValueError(
            f"{quoted(value)} is no subnet's id; write it as subnet-0a1b2c3d4e5f67890"
        )
    return value


def _security_group(value: str) -> str:
    if not re.fullmatch(r"sg-[0-9a-f]{8,17}", value):
        raise ValueError(
            f"{quoted(value)} is no security group's id; write it as"
            " sg-0a1b2c3d4e5f67890"
        )
    return value


def _image(value: str) -> str:
    if value and not _IMAGE.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is no image; write an id such as ami-0a1b2c3d4e5f67890,"
            " or the name of an SSM parameter that holds one, such as"
            " /aws/service/canonical/…"
        )
    return value


def _type(value: str) -> str:
    if _TYPE.fullmatch(value):
        return value
    try:
        resolve_gpu_class(value)
    except ValueError as error:
        raise ValueError(
            f"{quoted(value)} is neither an instance type, such as g5.xlarge, nor a GPU"
            f" class ({str(error).rpartition('; ')[2]}); write one of these"
        ) from None
    return value


def _by_name(value: Any) -> Any:
    """Regions as a table; a list of names means each with no settings of its own."""
    if isinstance(value, str):
        raise ValueError('is text; write a list, such as ["us-east-1"]')
    if isinstance(value, list | tuple):
        names = cast("list[Any]", value)
        return {name: AwsRegion() for name in names}
    return value


Secret = Annotated[SecretStr, BeforeValidator(_word)]
RegionName = Annotated[str, AfterValidator(_region)]
SubnetId = Annotated[str, AfterValidator(_subnet)]
SecurityGroupId = Annotated[str, AfterValidator(_security_group)]
Image = Annotated[str, AfterValidator(_image)]
TypeName = Annotated[str, AfterValidator(_type)]


class AwsRegion(StrictModel):
    """The network and the image of a region's machines.

    - `subnets`: in each of their zones machines may start; unset, the default subnets
      of the account.
    - `security_groups`: unset, the default one of the network.
    - `image`: instead of the provider's.
    """

    subnets: tuple[SubnetId, ...] = ()
    security_groups: tuple[SecurityGroupId, ...] = ()
    image: Image = ""


class AwsConfig(InstanceSettings):
    """The access to the account and its regions, and the settings that all clouds have
    (`InstanceSettings`).

    - `access_key_id`, `secret_access_key`, `session_token`: a key; unset, what AWS's
      own tools find in the environment, the profile or the role of this host.
    - `profile`: a profile of `~/.aws`.
    - `regions`: a list of names, or a table with the settings of each.
    - `types`: instance types or GPU classes; unset, all types with NVIDIA GPUs.
    - `image`: the id of an image, or the name of an SSM parameter that holds one;
      unset, AWS's newest Deep Learning base image.
    - `on_demand`: whether machines on demand are offered; see also `spot`.
    - `public_address`: whether machines get a public address; unset, as the subnet
      says.
    - `endpoint`: the one address of all of AWS's services, for tests.
    """

    provider: ClassVar[str] = "aws"

    access_key_id: Secret | None = None
    secret_access_key: Secret | None = None
    session_token: Secret | None = None
    profile: str = ""
    regions: Annotated[
        Mapping[RegionName, AwsRegion], BeforeValidator(_by_name), Field(min_length=1)
    ]
    types: tuple[TypeName, ...] = ()
    image: Image = ""
    on_demand: bool = True
    public_address: bool | None = None
    endpoint: str = ""
    timeout_s: float = Field(default=20.0, gt=0, le=300)

    @model_validator(mode="after")
    def _key_is_whole(self) -> "AwsConfig":
        if bool(self.access_key_id) != bool(self.secret_access_key):
            missing = "secret_access_key" if self.access_key_id else "access_key_id"
            raise ValueError(
                f"@{missing}@is missing, and half of the key is given; give both, or"
                " neither and a profile or a role"
            )
        if self.session_token and not self.access_key_id:
            raise ValueError(
                "@session_token@is given without its key; give access_key_id and"
                " secret_access_key, too"
            )
        if self.profile and self.access_key_id:
            raise ValueError(
                "@profile@is given beside access_key_id; give one of the two"
            )
        return self

    @model_validator(mode="after")
    def _markets_are_used(self) -> "AwsConfig":
        if not (self.spot or self.on_demand):
            raise ValueError(
                "@spot@is false, and so is on_demand; leave one of them true"
            )
        return self

    @model_validator(mode="after")
    def _image_is_in_each_region(self) -> "AwsConfig":
        others = [name for name, region in self.regions.items() if not region.image]
        if self.image.startswith("ami-") and len(others) > 1:
            raise ValueError(
                "@image@is the id of an image in one region, and"
                f" {' and '.join(sorted(others))} need one; write each as"
                " regions.NAME.image, or name an SSM parameter"
            )
        return self

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """InvalidInputError names a wrong or missing field, and never a secret."""
        values = {
            key: value for key, value in config.items() if value not in (None, "")
        }
        if "regions" not in values:
            found = next(
                (name for name in _REGION_VARIABLES if os.environ.get(name)), ""
            )
            if not found:
                raise InvalidInputError.of(
                    "regions", "is missing", 'name them, such as ["us-east-1"]'
                )
            values["regions"] = [os.environ[found]]
        return parse_model(cls, values)

    @property
    def pays_for_address(self) -> bool:
        """See InstanceSettings. Where the subnet decides, it is counted."""
        return self.public_address is not False

    def image_of(self, region: str) -> str:
        """The image of machines in a region; empty for the newest of AWS's own."""
        return self.regions[region].image or self.image
