"""The request that starts a machine: pure functions."""

import gzip
import hashlib
from dataclasses import dataclass
from typing import Any

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.instances.api import (
    TAG_INSTALLATION,
    TAG_OWNER,
    InstanceOrder,
)

# EC2 takes this many bytes.
_LONGEST_USER_DATA = 16384
_TAGGED = ("instance", "volume")


@dataclass(frozen=True, slots=True)
class MachineImage:
    """An image: its id, the device of its root disk, and how large that is at least."""

    id: str
    root_device: str
    disk_gb: int


def client_token(order: InstanceOrder) -> str:
    """64 characters, as many as EC2 allows, that stand for the owner of a machine."""
    owner = f"{order.installation}/{order.owner}"
    return hashlib.sha256(owner.encode()).hexdigest()


def run_request(
    order: InstanceOrder, settings: AwsConfig, image: MachineImage, subnet: str
) -> dict[str, Any]:
    """The parameters of RunInstances; equal for equal arguments."""
    tags = {
        **order.tags,
        "Name": order.name,
        TAG_INSTALLATION: order.installation,
        TAG_OWNER: order.owner,
    }
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    disk = {
        "VolumeSize": max(order.disk_gb, image.disk_gb),
        "VolumeType": "gp3",
        "DeleteOnTermination": True,
    }
    request: dict[str, Any] = {
        "ClientToken": client_token(order),
        "ImageId": image.id,
        "InstanceType": order.type,
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceInitiatedShutdownBehavior": "terminate",
        # Only what runs on the machine itself gets the metadata, and no container.
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [{"DeviceName": image.root_device, "Ebs": disk}],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": pairs} for kind in _TAGGED
        ],
        "UserData": _user_data(order.user_data),
        **_network(order, settings, subnet),
    }
    if order.spot:
        request["InstanceMarketOptions"] = _spot(order)
    return request


def _spot(order: InstanceOrder) -> dict[str, Any]:
    options = {
        "SpotInstanceType": "one-time",
        "InstanceInterruptionBehavior": "terminate",
    }
    if order.max_price is not None:
        options["MaxPrice"] = f"{order.max_price:f}"
    return {"MarketType": "spot", "SpotOptions": options}


def _network(order: InstanceOrder, settings: AwsConfig, subnet: str) -> dict[str, Any]:
    """In the subnet; without one in the zone's default subnet."""
    groups = list(settings.regions[order.region].security_groups)
    if not subnet:
        request: dict[str, Any] = {"Placement": {"AvailabilityZone": order.zone}}
        if groups:
            request["SecurityGroupIds"] = groups
        return request
    interface: dict[str, Any] = {"DeviceIndex": 0, "SubnetId": subnet}
    if groups:
        interface["Groups"] = groups
    if settings.public_address is not None:
        interface["AssociatePublicIpAddress"] = settings.public_address
    return {"NetworkInterfaces": [interface]}


def _user_data(text: str) -> bytes:
    data = text.encode()
    if len(data) <= _LONGEST_USER_DATA:
        return data
    # cloud-init reads it packed, too; without a time equal texts stay equal.
    packed = gzip.compress(data, mtime=0)
    if len(packed) <= _LONGEST_USER_DATA:
        return packed
    raise ProviderError(
        f"The script for the first start of the machine has {len(data)} bytes, and"
        f" {len(packed)} packed; EC2 takes {_LONGEST_USER_DATA}.",
        AwsConfig.provider,
        "REFUSED",
    )
